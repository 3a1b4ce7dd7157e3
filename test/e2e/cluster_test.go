package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// homeOf returns the home of a service and checks that all of its instances are there.
func homeOf(t testing.TB, st pando.ServiceStatus) string {
	t.Helper()
	for _, i := range st.Instances {
		if i.Host != st.Home {
			t.Errorf("%s is on %s; the home of %s is %s", i.ID, i.Host, st.Name, st.Home)
		}
	}
	return string(st.Home)
}

// settled waits until all instances of a service are at one home other than not.
func settled(s *labtest.Service, n int, not string) pando.ServiceStatus {
	return s.Await("all of "+s.Name+" in one place, not "+not, func(st pando.ServiceStatus) bool {
		for _, i := range st.Instances {
			if i.Host != st.Home {
				return false
			}
		}
		return st.InRotation == n && len(st.Instances) == n && string(st.Home) != not
	})
}

func TestACluster(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Flags: []string{"--pool", "1"}})
	homes := map[string]*labtest.Service{}
	for _, name := range []string{"web", "shop", "blog"} {
		s := p.Deploy(labtest.Echo(name, "scale: {min: 2, max: 4}"))
		homes[homeOf(t, s.AwaitInstances(2))] = s
	}
	if len(homes) != 3 {
		t.Fatalf("three services have the homes %v", homes)
	}
	for _, s := range homes {
		reached(p, s)
	}
	away := homes[p.Hosts[1]]
	grows(p, away)
	has(t, p.Must(p.Host(), p.Bin, "hosts"), "server, agent", "here", "ago")
	t.Run("commands on every host", func(t *testing.T) { everyCommand(p.In(t)) })

	t.Run("between instances of two hosts", func(t *testing.T) {
		p := p.In(t)
		ask := p.Deploy("name: asker\ncommand: [sh, -c, 'curl -sS --retry 20 --retry-connrefused " +
			"--max-time 60 " + away.URL("/") + "; exec sleep 1000']\nhealth: {ready: exec true}")
		p.Await("the answer in the asker's log", func() (string, bool) {
			text := p.Pando("logs", ask.Name)
			return text, strings.Contains(text, away.Name+"-")
		})
		p.Must(p.Hosts[2], p.Bin, "rm", "asker", "--wait")
	})
	t.Run("a killed agent", func(t *testing.T) { in(t, p, homes[p.Hosts[2]], killedAgent) })
	t.Run("a cut link", func(t *testing.T) { in(t, p, homes[p.Hosts[1]], cutLink) })
	t.Run("all killed", func(t *testing.T) { in(t, p, homes[p.Hosts[1]], allKilled) })
	t.Run("a killed host", func(t *testing.T) { killedHost(p.In(t)) })
}

// in runs a part of the test as a subtest. After a failure it logs the decisions about the service.
func in(
	t *testing.T, p *labtest.Pando, s *labtest.Service, part func(*labtest.Pando, *labtest.Service),
) {
	p = p.In(t)
	s = s.In(p)
	defer func() {
		if p.Failed() {
			p.Log(p.Run(p.Host(), p.Bin, "why", s.Name).Text)
		}
	}()
	part(p, s)
}

// reached checks that a service answers on every protocol from every host and the client.
func reached(p *labtest.Pando, s *labtest.Service) {
	p.Helper()
	for _, from := range append([]string{labtest.Client}, p.Hosts...) {
		for _, vip := range []string{s.VIP, "[" + s.Status().VIP6.String() + "]"} {
			for _, ask := range [][]string{
				{"curl", "-gsS", "--fail", "--max-time", "2", "http://" + vip + "/"},
				{p.WithEcho(), "udp", vip + ":7", "?"},
			} {
				p.Await(strings.Join(ask, " ")+" on "+from, func() (string, bool) {
					out := p.Run(from, ask...)
					return out.Text, out.Code == 0 && strings.HasPrefix(out.Text, s.Name+"-")
				})
			}
			has(p, p.Must(from, "ping", "-c", "1", "-W", "5", strings.Trim(vip, "[]")), "1 received")
		}
	}
}

// grows checks that connections to a service on another host stay with their instance while others
// start and leave. New connections reach the new instances.
func grows(p *labtest.Pando, s *labtest.Service) {
	var held []*labtest.Process
	for _, from := range append([]string{labtest.Client}, p.Hosts...) {
		held = append(held, s.Hold(from))
	}
	p.Pando("scale", s.Name, "4", "--wait")
	for _, from := range []string{labtest.Client, p.Hosts[0], p.Hosts[1], p.Hosts[2]} {
		answered := map[string]bool{}
		p.Await("all four from "+from, func() (string, bool) {
			answered[s.Get(from, "/")] = true
			return strings.Join(slices.Collect(maps.Keys(answered)), ", "), len(answered) == 4
		})
	}
	p.Pando("scale", s.Name, "2", "--wait")
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			p.Errorf("a connection did not outlive the scaling: %s", out.Text)
		}
	}
	p.Pando("scale", s.Name, "auto")
	homeOf(p, s.AwaitInstances(2))
}

// killedAgent checks that connections on a host survive its agent. The service moves when the lease
// has ended. All its instances are at one home again when the agent returns.
func killedAgent(p *labtest.Pando, s *labtest.Service) {
	home := string(s.Status().Home)
	held := s.Hold(home)
	p.KillAgent(home)
	if got := s.Get(home, "/"); !strings.HasPrefix(got, s.Name+"-") {
		p.Errorf("with no agent there a new connection got %q", got)
	}
	awaitState(p, home, pando.HostAway)
	s.Await("its instances to be shown away", func(st pando.ServiceStatus) bool {
		for _, i := range st.Instances {
			if string(i.Host) == home && !strings.Contains(i.Away, "host "+home+" is away since") {
				return false
			}
		}
		return string(st.Home) != home && st.InRotation == 2
	})
	served(p, s, labtest.Client)
	if got := s.Get(home, "/"); !strings.HasPrefix(got, s.Name+"-") {
		p.Errorf("on its host a new connection got %q", got)
	}
	p.Up(home)
	awaitState(p, home, pando.HostHere)
	if out := held.Stop(); out.Code != 0 {
		p.Errorf("a connection on the host was broken: %s", out.Text)
	}
	settled(s, 2, home)
	has(p, s.Why(), "while "+home+" was away")
}

// served waits until a service answers.
func served(p *labtest.Pando, s *labtest.Service, from string) {
	p.Helper()
	p.Await("the page from "+from, func() (string, bool) {
		out := p.Run(from, "curl", "-sS", "--fail", "--max-time", "2", s.URL("/"))
		return out.Text, out.Code == 0
	})
}

// ledger has a state with the total 7 once it serves.
const ledger = "name: ledger\nstate: {total: counter}\nresources: {memory: 16M}\n" +
	"health: {ready: exec true}\n" +
	"command: [sh, -c, '" + selfAPI + "state/total -X PUT -d 7 && " + selfAPI +
	"state/push -X POST && exec sleep 1000']\n"

const selfAPI = "curl -sS --fail --unix-socket $PANDO_SOCKET http://pando/v1/self/"

// ledgerOn deploys the ledger with a given host as its home.
func ledgerOn(p *labtest.Pando, host string) *labtest.Service {
	p.Helper()
	s := p.Deploy(ledger + "\nplace: {only: host=" + host + "}")
	if home := string(s.Status().Home); home != host {
		p.Fatalf("ledger is on %s, and its rule names %s", home, host)
	}
	p.Await("its state", func() (string, bool) {
		log := p.Run(p.Host(), p.Bin, "state", "log", s.Name)
		return log.Text, strings.Contains(log.Text, "ledger-")
	})
	return s
}

// everyCommand checks that an operator reads and changes the same on every host, regardless of the
// service's home.
func everyCommand(p *labtest.Pando) {
	s := ledgerOn(p, p.Hosts[1])
	id := string(s.Status().Instances[0].ID)
	for n, host := range p.Hosts {
		pando := func(args ...string) string { return p.Must(host, append([]string{p.Bin}, args...)...) }
		has(p, pando("status", s.Name), id, "home       "+p.Hosts[1])
		has(p, pando("why", s.Name), "deploy", "least loaded host", "in rotation")
		has(p, pando("logs", s.Name, "--lines", "5"), id)
		has(p, pando("state", "log", s.Name), id)
		clone := "rm -rf $0 && git clone -q http://127.0.0.1:7400/state/ledger.git $0 && cat $0/total"
		if got := p.Must(host, "sh", "-c", clone, p.Dir+"/clone"); strings.TrimSpace(got) != "7" {
			p.Errorf("the clone on %s has the total %q", host, got)
		}
		pando("scale", "web", fmt.Sprint(n+2), "--wait")
		if by := strings.ReplaceAll(pando("why", "web", "-o", "json"), " ", ""); n > 0 &&
			!strings.Contains(by, `"name":"`+host+`"`) {
			p.Errorf("no request came from %s:\n%s", host, by)
		}
	}
	p.Must(p.Hosts[2], p.Bin, "scale", "web", "auto")
	out := p.Run(p.Hosts[2], p.Bin, "rm", s.Name, "--purge", "--wait")
	has(p, out.Text, "pando hosts allow "+p.Hosts[2]+" deploy") // a state needs the right
	p.Pando("rm", s.Name, "--purge", "--wait")
}

// cutLink checks that an unreachable host is away and continues by itself. When the link is back,
// it ends the instances that have moved. A service with state on that host waits and then runs
// there once.
func cutLink(p *labtest.Pando, s *labtest.Service) {
	home := string(s.Status().Home)
	bound := ledgerOn(p, home)
	first := bound.Status().Instances[0].ID
	p.Must(home, "ip", "link", "set", "eth0", "down")
	awaitState(p, home, pando.HostAway)
	if got := s.Get(home, "/"); !strings.HasPrefix(got, s.Name+"-") {
		p.Errorf("on the host that is cut off a connection got %q", got)
	}
	has(p, p.Run(home, p.Bin, "ps").Text, "does not answer", "continue")
	s.Await("the service elsewhere",
		func(st pando.ServiceStatus) bool { return string(st.Home) != home && st.InRotation == 2 })
	has(p, s.Why(), "because "+home+", its home, is away")
	waits(p, bound, home)
	has(p, p.Pando("logs", bound.Name), "cannot be read now: host "+home+" is away")
	p.Must(home, "ip", "link", "set", "eth0", "up")
	awaitState(p, home, pando.HostHere)
	settled(s, 2, home)
	served(p, s, home)
	if st := bound.AwaitInstances(1); st.Instances[0].ID != first {
		p.Errorf("%s is there in place of %s, which has the state", st.Instances[0].ID, first)
	}
	p.Pando("rm", bound.Name, "--purge", "--wait")
}

// waits checks that a service reports that its state is on a host that is away. No instance starts
// in its place.
func waits(p *labtest.Pando, s *labtest.Service, home string) {
	p.Helper()
	st := s.Await("the reason why it waits", func(st pando.ServiceStatus) bool {
		return st.Phase == pando.ServiceDegraded && strings.Contains(st.Reason, "its state is on "+home)
	})
	if len(st.Instances) != 1 {
		p.Errorf("its instances are %+v", st.Instances)
	}
	has(p, s.Why(), "nothing is started in its place", "its state is on "+home)
	has(p, p.Pando("status", s.Name), "its state is on "+home, "host "+home+" is away since")
}

// allKilled checks that connections survive and new ones are steered while the server and all
// agents are dead. Restarted daemons find the running instances.
func allKilled(p *labtest.Pando, s *labtest.Service) {
	home := string(s.Status().Home)
	held := []*labtest.Process{s.Hold(labtest.Client), s.Hold(p.Hosts[2])}
	everywhere := func(when string) {
		for _, from := range append([]string{labtest.Client}, p.Hosts...) {
			if got := s.Get(from, "/"); !strings.HasPrefix(got, s.Name+"-") {
				p.Errorf("%s a new connection from %s got %q", when, from, got)
			}
		}
	}
	p.KillServer(p.Host())
	everywhere("with no server")
	has(p, p.Run(p.Hosts[2], p.Bin, "ps").Text, "the server is down", "continue")
	for _, h := range p.Hosts {
		p.KillAgent(h)
	}
	everywhere("with no daemon")
	for _, h := range p.Hosts {
		p.Up(h)
	}
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	s.Await("two serve", func(st pando.ServiceStatus) bool { return st.InRotation == 2 })
	for _, from := range append([]string{labtest.Client}, p.Hosts...) {
		// The service moves if the daemons take longer to return than a host may be away.
		served(p, s, from)
	}
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			p.Errorf("a connection to %s was broken: %s", home, out.Text)
		}
	}
	homeOf(p, settled(s, 2, ""))
}

// killedHost checks that stateless services start elsewhere and that connections to other hosts
// survive. A service with state on the dead host waits.
func killedHost(p *labtest.Pando) {
	last := p.Hosts[2]
	bound := ledgerOn(p, last)
	moves := p.Deploy(labtest.Echo("moves"))
	other := p.Deploy(labtest.Echo("other"))
	for n := 0; string(moves.Status().Home) != last || string(other.Status().Home) == last; n++ {
		if n == 6 {
			p.Fatalf("moves is on %s, other on %s", moves.Status().Home, other.Status().Home)
		}
		moves, other = other, p.Deploy(labtest.Echo("other"+string(rune('a'+n))))
	}
	held := other.Hold(labtest.Client)
	p.KillHost(last)
	awaitState(p, last, pando.HostAway)
	waits(p, bound, last)
	moves.Await("a new home",
		func(st pando.ServiceStatus) bool { return string(st.Home) != last && st.InRotation == 1 })
	moves.AwaitPage(labtest.Client)
	if out := held.Stop(); out.Code != 0 {
		p.Errorf("a connection to another host was broken: %s", out.Text)
	}
	p.Pando("rm", bound.Name, "--purge", "--wait")
	if home := string(p.Deploy(ledger).Status().Home); home == last {
		p.Errorf("it began anew on %s", home)
	}
}
