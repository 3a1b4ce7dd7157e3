package e2e

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// seen is what `pando hosts` on one host says of all.
func seen(p *labtest.Pando, from string) map[string]pando.HostStatus {
	p.Helper()
	var all []pando.HostStatus
	if err := json.Unmarshal([]byte(p.Must(from, p.Bin, "hosts", "-o", "json")), &all); err != nil {
		p.Fatal(err)
	}
	out := map[string]pando.HostStatus{}
	for _, h := range all {
		out[string(h.Name)] = h
	}
	return out
}

func awaitState(p *labtest.Pando, host string, want pando.HostState) pando.HostStatus {
	p.Helper()
	var h pando.HostStatus
	p.Await(host+" to be "+string(want), func() (string, bool) {
		h = seen(p, p.Host())[host]
		return string(h.State), h.State == want
	})
	return h
}

func has(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

func TestWhoMayJoin(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	p.Up(one)
	good := p.Invitation()
	server, token := good[1], good[3]

	has(t, p.UpFails(2, two, "--join", server), "--token", "`pando token`")
	has(t, p.UpFails(3, two, "--join", server, "--token", "pando1abc"), "is no token", "`pando token`")
	forged := token[:len(token)-4] + "aaaa"
	has(t, p.UpFails(10, two, "--join", server, "--token", forged), "not one of this cluster", "`pando token`")
	var short struct{ Token string }
	if err := json.Unmarshal([]byte(p.Pando("token", "--for", "0s", "-o", "json")), &short); err != nil {
		t.Fatal(err)
	}
	has(t, p.UpFails(10, two, "--join", server, "--token", short.Token), "the token ended at", "make a new one")
	has(t, p.UpFails(8, two, "--join", "10.126.0.3", "--token", token), "no server answers at 10.126.0.3:7401")

	p.Up(three) // a cluster of its own
	has(t, p.UpFails(10, two, "--join", "10.126.0.3", "--token", token), "another cluster's", "`pando token`")
	has(t, p.UpFails(6, three, good...), "a cluster of its own", "pando down --purge")

	next := labtest.Build(t, "./cmd/pando", "layoutnext")
	out := p.Run(two, append([]string{next, "up", "--data-dir", p.Data(two), "--host", two}, good...)...)
	if out.Code != 3 {
		t.Errorf("another layout: exit code %d", out.Code)
	}
	has(t, out.Text, "layout 2", "cluster's is 1", "`pando restart`")

	p.Up(two, good...)
	all := seen(p, two)
	if h := all[two]; len(all) != 2 || h.State != pando.HostHere || h.Slot != 1 || h.Server || !all[one].Server {
		t.Errorf("the hosts are %+v", all)
	}
	p.Up(two) // a member stays one
	has(t, p.Run(two, p.Bin, "scale", "web", "2").Text, "server's host", "`pando hosts`")
	has(t, p.Run(two, p.Bin, "token").Text, "on another host")
	p.Down(three, "--purge")
	has(t, p.UpFails(6, three, append(good, "--host", two)...), "choose another name with --host")
	p.Down(two, "--purge")
	p.Await("the end of the lease", func() (string, bool) {
		h := seen(p, one)[two]
		return string(h.State), h.State == pando.HostAway && !h.Heard.IsZero()
	})
	p.Up(two, good...) // the name is free again, and has its slot
	if h := seen(p, one)[two]; h.Slot != 1 {
		t.Errorf("it came back as %+v", h)
	}
}

// homeOf is the one host on which all instances of a service are.
func homeOf(t testing.TB, st pando.ServiceStatus) string {
	t.Helper()
	for _, i := range st.Instances {
		if i.Host != st.Home {
			t.Errorf("%s is on %s; the home of %s is %s", i.ID, i.Host, st.Name, st.Home)
		}
	}
	return string(st.Home)
}

// settled waits until all instances of a service are at one home, other than some.
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
	one := p.Host()
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
	away := homes[p.Hosts[1]] // from the first host: what only the other has
	id := string(away.Status().Instances[0].ID)
	has(t, away.Why(), "deploy", "the home of "+away.Name, "in rotation")
	p.Pando("logs", away.Name, "--lines", "5")
	p.Pando("logs", away.Name, "--instance", id)
	has(t, p.Must(p.Hosts[2], p.Bin, "status", away.Name), away.VIP, id, p.Hosts[1]) // and from a host without a server
	grows(p, away)
	has(t, p.Must(one, p.Bin, "hosts"), "server, agent", "here", "ago")

	t.Run("between instances of two hosts", func(t *testing.T) {
		p := p.In(t)
		ask := p.Deploy("name: asker\ncommand: [sh, -c, 'curl -sS --retry 20 --retry-connrefused --max-time 60 " + away.URL("/") + "; exec sleep 1000']\nhealth: {ready: exec true}")
		p.Await("the answer in the asker's log", func() (string, bool) {
			text := p.Pando("logs", ask.Name)
			return text, strings.Contains(text, away.Name+"-")
		})
		p.Pando("rm", "asker", "--wait")
	})
	t.Run("a killed agent", func(t *testing.T) { killedAgent(p.In(t), homes[p.Hosts[2]]) })
	t.Run("a cut link", func(t *testing.T) { cutLink(p.In(t), homes[p.Hosts[1]]) })
	t.Run("a killed host", func(t *testing.T) { killedHost(p.In(t)) })
}

// reached: a service is reached from everywhere, by every protocol.
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

// grows: connections to a service on another host stay with their instance while others come and go, and new ones find those.
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

// killedAgent: nothing breaks on its host; the service moves when the lease has ended, and is brought together when the
// agent returns.
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
	p.Await("the page from the client", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--fail", "--max-time", "2", s.URL("/"))
		return out.Text, out.Code == 0
	})
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

// cutLink: a host that nobody reaches is away, goes on by itself, and ends what has moved when the link is back.
func cutLink(p *labtest.Pando, s *labtest.Service) {
	home := string(s.Status().Home)
	p.Must(home, "ip", "link", "set", "eth0", "down")
	awaitState(p, home, pando.HostAway)
	if got := s.Get(home, "/"); !strings.HasPrefix(got, s.Name+"-") {
		p.Errorf("on the host that is cut off a connection got %q", got)
	}
	has(p, p.Run(home, p.Bin, "ps").Text, "does not answer", "go on")
	s.Await("the service elsewhere", func(st pando.ServiceStatus) bool { return string(st.Home) != home && st.InRotation == 2 })
	p.Must(home, "ip", "link", "set", "eth0", "up")
	awaitState(p, home, pando.HostHere)
	settled(s, 2, home)
	p.Await("the page from the host that is back", func() (string, bool) {
		out := p.Run(home, "curl", "-sS", "--fail", "--max-time", "2", s.URL("/"))
		return out.Text, out.Code == 0
	})
}

// killedHost: what can start elsewhere does; what has its state there waits, and says so.
func killedHost(p *labtest.Pando) {
	last := p.Hosts[2]
	const self = "curl -sS --fail --unix-socket $PANDO_SOCKET http://pando/v1/self/"
	ledger := "name: ledger\nstate: {total: counter}\nresources: {memory: 16M}\nhealth: {ready: exec true}\n" +
		"command: [sh, -c, '" + self + "state/total -X PUT -d 7 && " + self + "state/push -X POST && exec sleep 1000']\n"
	bound := p.Deploy(ledger)
	for n := 0; string(bound.Status().Home) != last; n++ { // fill the others until it lands on the host that is to die
		if n == 6 {
			p.Fatalf("ledger never came to %s", last)
		}
		p.Pando("rm", "ledger", "--purge", "--wait")
		p.Deploy(labtest.Echo("filler"+string(rune('a'+n)), "scale: {min: 3, max: 3}"))
		bound = p.Deploy(ledger)
	}
	p.Await("its state by way of the first host", func() (string, bool) {
		log := p.Run(p.Host(), p.Bin, "state", "log", "ledger")
		return log.Text, strings.Contains(log.Text, "ledger-")
	})
	clone := "rm -rf $0 && git clone -q http://127.0.0.1:7400/state/ledger.git $0 && cat $0/total"
	if got := p.Must(p.Host(), "sh", "-c", clone, p.Dir+"/ledger.clone"); strings.TrimSpace(got) != "7" {
		p.Errorf("the clone has the total %q", got)
	}
	p.KillHost(last)
	awaitState(p, last, pando.HostAway)
	bound.Await("the reason why it waits", func(st pando.ServiceStatus) bool {
		return st.Phase == pando.ServiceDegraded && strings.Contains(st.Reason, "its state is on "+last)
	})
	p.Pando("rm", "ledger", "--purge", "--wait")
	bound = p.Deploy(ledger)
	if home := string(bound.Status().Home); home == last {
		p.Errorf("it began anew on %s", home)
	}
}
