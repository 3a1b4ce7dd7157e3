package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// servers3 are three hosts with a server each, an instance of one service on each, and a connection
// from the client.
type servers3 struct {
	*hosts3
	web  *labtest.Service
	held *labtest.Process
}

func threeServers(t *testing.T) servers3 {
	t.Helper()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	p.Up(p.Host())
	for _, host := range p.Hosts[1:] {
		joinAsServer(p, host)
	}
	s := servers3{hosts3: p}
	s.web = p.Deploy(labtest.Echo("web", "scale: {min: 3, max: 9}", "place: {spread: host}"))
	s.web.AwaitInstances(3)
	s.held = s.web.Hold(labtest.Client)
	return s
}

// joinAsServer makes a host a server of the cluster of the first host.
func joinAsServer(p *labtest.Pando, host string) {
	p.Helper()
	var is struct{ Join, Token string }
	if err := json.Unmarshal([]byte(p.Pando("servers", "add", "-o", "json")), &is); err != nil {
		p.Fatal(err)
	}
	p.Up(host, "--server", "--join", is.Join, "--token", is.Token)
}

// hosts3 is a lab of three hosts.
type hosts3 = labtest.Pando

// leader returns the host of the leading server, as a host sees it.
func (p servers3) leader(from string) (name string) {
	p.Helper()
	p.Await("a leader", func() (string, bool) {
		var all []struct {
			Name  string
			Leads bool
		}
		out := p.Run(from, p.Bin, "servers", "ls", "-o", "json")
		if out.Code != 0 || json.Unmarshal([]byte(out.Text), &all) != nil {
			return out.Text, false
		}
		for _, s := range all {
			if s.Leads {
				name = s.Name
			}
		}
		return out.Text, name != ""
	})
	return name
}

// others returns the other hosts.
func (p servers3) others(h string) []string {
	return slices.DeleteFunc(slices.Clone(p.Hosts), func(o string) bool { return o == h })
}

// serves waits until n instances of the service serve. Others may drain: on a busy machine a host
// can be away for so long that others take the place of its instances, which then wait for their
// connections.
func (p servers3) serves(n int) {
	p.Helper()
	p.web.Await(fmt.Sprintf("%d instances in rotation", n), func(st pando.ServiceStatus) bool {
		return st.InRotation == n && !slices.ContainsFunc(st.Instances,
			func(i pando.InstanceStatus) bool { return i.Capacity() && i.Phase != pando.PhaseInRotation })
	})
}

// settled waits until the service has n instances that all serve, and checks that each program
// began once and that no other one runs.
func (p servers3) settled(n int) pando.ServiceStatus {
	p.Helper()
	var st pando.ServiceStatus
	p.Await(fmt.Sprintf("%d instances", n), func() (string, bool) {
		var err error
		st, err = p.API(p.Host()).Service(p.Context(), pando.DefaultService("web"))
		return fmt.Sprintf("%v %+v", err, st.Instances), err == nil && st.InRotation == n &&
			len(st.Instances) == n
	})
	began := func() (counts map[pando.InstanceID]int, seen string) {
		seen = p.Run(p.Host(), p.Bin, "logs", "web", "--lines", "1000").Text
		counts = map[pando.InstanceID]int{}
		for _, i := range st.Instances {
			counts[i.ID] = strings.Count(seen, "hello from "+string(i.ID)+"\n")
		}
		return counts, seen
	}
	// A host that was out of reach a moment ago adds its lines a moment later.
	p.Await("the first line of each program", func() (string, bool) {
		counts, seen := began()
		for _, n := range counts {
			if n == 0 {
				return seen, false
			}
		}
		return seen, true
	})
	counts, _ := began()
	for id, n := range counts {
		if n != 1 {
			p.Errorf("%s began %d times", id, n)
		}
	}
	return st
}

// names returns the instances and their hosts.
func names(st pando.ServiceStatus) (out []string) {
	for _, i := range st.Instances {
		out = append(out, fmt.Sprint(i.ID, " on ", i.Host))
	}
	slices.Sort(out)
	return out
}

// joined returns the time at which the agent of each host took its lease.
func (p servers3) joined(from string) string {
	p.Helper()
	all, err := p.API(from).Hosts(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	var out []string
	for _, h := range all {
		out = append(out, fmt.Sprint(h.Name, " ", h.State, " ", h.Joined.UnixNano()))
	}
	return strings.Join(out, ", ")
}

// pausedFor is longer than the lease of a host. PANDO_PAUSE sets another time: 20s in `make soak`.
func pausedFor(t *testing.T) time.Duration {
	if text := os.Getenv("PANDO_PAUSE"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return pando.HostLease + 4*time.Second
}

// The leader is paused for longer than a lease. No host counts as lost, no instance moves, and a
// decision of that time is there once.
func TestAPausedLeaderLosesNoLeaseAndMovesNothing(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	before := names(p.settled(3))
	lead := p.leader(p.Host())
	witness := p.others(lead)[0]
	leases := p.joined(witness)
	text, err := os.ReadFile(p.Path(lead, "/run/pando/server.pid"))
	if err != nil {
		t.Fatal(err)
	}
	// The number is of the host's own process namespace.
	pause := func(s syscall.Signal) {
		p.Must(lead, "kill", "-"+strconv.Itoa(int(s)), strings.TrimSpace(string(text)))
	}
	pause(syscall.SIGSTOP)
	began := time.Now()
	next := lead
	p.Await("another leader", func() (string, bool) {
		next = p.leader(witness)
		return next, next != lead
	})
	took := time.Since(began)
	out := p.Run(witness, p.Bin, "scale", "web", "4", "--wait")
	if out.Code != 0 {
		t.Errorf("pando scale beside the paused leader: %s", out.Text)
	}
	p.Await("the end of the pause", func() (string, bool) {
		if now := p.joined(witness); now != leases {
			t.Fatalf("the leases were %s, and are %s", leases, now)
		}
		return "", time.Since(began) > pausedFor(t)
	})
	pause(syscall.SIGCONT)
	p.Await("the former leader to answer", func() (string, bool) {
		out := p.Run(lead, p.Bin, "status", "web")
		return out.Text, out.Code == 0
	})
	after := names(p.settled(4))
	for _, n := range before {
		if !slices.Contains(after, n) {
			t.Errorf("%s was there before the pause, and now %v are", n, after)
		}
	}
	if now := p.joined(witness); now != leases {
		t.Errorf("the leases were %s, and are %s", leases, now)
	}
	p.unbroken()
	t.Logf("the leader was paused for %s; %s led after %s; 0 leases lost, 0 of %d instances moved",
		time.Since(began).Round(time.Second), next, took.Round(10*time.Millisecond), len(before))
}

// unbroken ends the client's connection, which must have lived.
func (p servers3) unbroken() {
	p.Helper()
	if out := p.held.Stop(); out.Code != 0 {
		p.Errorf("a connection was broken: %s", out.Text)
	}
}

// A leader that is cut from the others decides nothing. The others decide without it. After the
// end of the cut everything is there once.
func TestACutLeaderDecidesNothing(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	p.unbroken() // a connection to an instance that leaves would keep it for its drain
	p.settled(3)
	lead := p.leader(p.Host())
	rest := p.others(lead)
	for _, h := range rest {
		if err := p.Lab.Cut(lead, h); err != nil {
			t.Fatal(err)
		}
	}
	cut := time.Now()
	p.Await("the majority to decide", func() (string, bool) {
		out := p.Run(rest[0], p.Bin, "scale", "web", "5")
		return out.Text, out.Code == 0
	})
	decided := time.Since(cut)
	if out := p.Run(lead, "timeout", "20", p.Bin, "scale", "web", "9"); out.Code == 0 {
		t.Errorf("the minority decided: %s", out.Text)
	}
	p.Await("the host of the minority to be away", func() (string, bool) {
		all, err := p.API(rest[0]).Hosts(t.Context())
		for _, h := range all {
			if string(h.Name) == lead && h.State == pando.HostAway {
				return "", true
			}
		}
		return fmt.Sprint(all, err), false
	})
	p.Await("five instances on the others", func() (string, bool) {
		st, err := p.API(rest[0]).Service(t.Context(), pando.DefaultService("web"))
		n := 0
		for _, i := range st.Instances {
			if string(i.Host) != lead {
				n++
			}
		}
		return fmt.Sprintf("%v %+v", err, st.Instances), n >= 5
	})
	if err := p.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	st := p.settled(5) // no copy of the former host stays, and no decision of the minority counts
	if st.Pin == nil || st.Pin.Instances != 5 {
		t.Errorf("the number of the minority counts: %+v", st.Pin)
	}
	t.Logf("the majority decided %s after the cut; one state again %s after its end; 0 instances "+
		"twice, 0 decisions of the minority", decided.Round(10*time.Millisecond),
		time.Since(healed).Round(10*time.Millisecond))
}

// All servers end at once and come back. Meanwhile traffic and asks' instances stay; afterwards
// everything is there once, and the next decision is made.
func TestAllServersEndAtOnceAndComeBack(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	before := names(p.settled(3))
	const rounds = 3
	for range rounds {
		for _, h := range p.Hosts {
			p.KillServer(h)
		}
		for range 10 {
			p.web.Get(labtest.Client, "/")
		}
		var ups []*labtest.Process // each waits for the majority
		for _, h := range p.Hosts {
			ups = append(ups, p.Start(h, p.Bin, "up", "--data-dir", p.Data(h), "--host", h,
				"--warden=false"))
		}
		for _, up := range ups {
			if out := up.Wait(); out.Code != 0 {
				t.Fatalf("pando up: %s", out.Text)
			}
		}
		if after := names(p.settled(3)); !slices.Equal(after, before) {
			t.Errorf("the instances were %v, and are %v", before, after)
		}
	}
	p.Pando("scale", "web", "4", "--wait")
	p.settled(4)
	p.unbroken()
	t.Logf("%d servers were killed at once, %d times: 0 instances moved, 0 connections broken",
		len(p.Hosts), rounds)
}
