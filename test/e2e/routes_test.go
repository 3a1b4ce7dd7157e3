package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab"
	"pando.run/pando/lab/labtest"
)

// hops returns the hosts to which the router sends packets for a VIP.
func hops(p *labtest.Pando, vip string) (hosts map[string]bool, seen string) {
	p.Helper()
	family := "-4"
	if netip.MustParseAddr(vip).Is6() {
		family = "-6"
	}
	out := p.Run(lab.RouterName, "ip", family, "route", "show", vip).Text
	hosts = map[string]bool{}
	words := strings.Fields(out)
	for n, w := range words[:max(0, len(words)-1)] {
		for _, h := range p.Lab.Hosts {
			if w == "via" && (words[n+1] == h.IPv4 || words[n+1] == h.IPv6) {
				hosts[h.Name] = true
			}
		}
	}
	return hosts, out
}

// awaitHops waits until the router sends packets for a VIP to exactly these hosts, and returns how
// long that took.
func awaitHops(p *labtest.Pando, vip string, want ...string) time.Duration {
	p.Helper()
	began := time.Now()
	p.Await(fmt.Sprintf("the router to reach %s by %v", vip, want), func() (string, bool) {
		got, seen := hops(p, vip)
		for _, h := range want {
			if !got[h] {
				return seen, false
			}
		}
		return seen, len(got) == len(want)
	})
	return time.Since(began)
}

// routed makes three hosts behind a router, and a service with instances on each.
func routed(t *testing.T, b lab.BGP, flags ...string) (*labtest.Pando, *labtest.Service) {
	if _, err := exec.LookPath("bird"); err != nil {
		t.Skip("BIRD is missing: sudo apt-get install bird2")
	}
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Router: &b,
		Flags: append([]string{"--pool", "1"}, flags...)})
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
	web.Await("instances on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 6 && len(seats(st)) == 3
	})
	awaitHops(p, web.VIP, p.Hosts...)
	return p, web
}

// survivors counts the connections to living hosts that broke.
func survivors(p *labtest.Pando, all []*talk, dead ...string) (broken int) {
	p.Helper()
	for _, c := range all {
		if strings.Contains(strings.Join(dead, " "), string(c.host)) {
			continue
		}
		if _, err := c.ask(labtest.Patience); err != nil {
			p.Logf("a connection to an instance on %s: %v", c.host, err)
			broken++
		}
	}
	return broken
}

// TestARouterSpreadsFlowsOverLivingHosts restarts an agent and kills another one, which changes no
// route. Then it stops one host and kills another. The router moves their flows to the last host,
// and no connection to an instance there breaks.
func TestARouterSpreadsFlowsOverLivingHosts(t *testing.T) {
	t.Parallel()
	p, web := routed(t, lab.BGP{})
	awaitHops(p, web.Status().VIP6.String(), p.Hosts...)
	all := talks(p, web, 90)
	p.Must(lab.RouterName, "sh", "-c", "ip monitor route </dev/null >/run/changes 2>&1 &")
	announced := func() (string, bool) {
		out := p.Pando("hosts")
		return out, strings.Count(out, "announces 2 VIPs to 10.126.0.253") == 3
	}
	p.Must(p.Hosts[2], p.Bin, "daemons", "restart")
	p.Await("the session of the new agent", announced)
	p.KillAgent(p.Hosts[1])
	p.Await("the loss of the killed agent's session", func() (string, bool) {
		out := p.Run(lab.RouterName, "birdc", "-s", "/run/bird.ctl", "show", "protocols").Text
		return out, strings.Count(out, "Established") < 3
	})
	p.Up(p.Hosts[1])
	p.Await("the session of its successor", announced)
	if n := survivors(p, all); n > 0 {
		t.Errorf("%d connections broke when an agent was killed", n)
	}
	changes, err := os.ReadFile(p.Path(lab.RouterName, "/run/changes"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(changes), web.VIP) {
		t.Errorf("the restart or the kill of an agent changed routes:\n%s", changes)
	}
	p.Down(p.Hosts[2], "--drain", "100ms")
	awaitHops(p, web.VIP, p.Hosts[0], p.Hosts[1])
	if n := survivors(p, all, p.Hosts[2]); n > 0 {
		t.Errorf("%d connections to other hosts broke when a host left", n)
	}
	p.KillHost(p.Hosts[1])
	took := awaitHops(p, web.VIP, p.Hosts[0])
	if n := survivors(p, all, p.Hosts[1], p.Hosts[2]); n > 0 {
		t.Errorf("%d connections to the living host broke when another died", n)
	}
	t.Logf("the route by the dead host was gone after %v", took)
	if took > 3*time.Second+busy {
		t.Errorf("the dead host had a route for %v, want 3s", took)
	}
}

// TestBFDFindsADeadHost kills a host: the router drops its routes in less than a second.
func TestBFDFindsADeadHost(t *testing.T) {
	t.Parallel()
	p, web := routed(t, lab.BGP{Password: "pear", BFD: true}, "--bgp-bfd", "100ms",
		"--bgp-password-file", password(t, "pear"))
	p.Await("the sessions of BFD", func() (string, bool) {
		out := p.Run(lab.RouterName, "birdc", "-s", "/run/bird.ctl", "show", "bfd", "sessions").Text
		return out, strings.Count(out, " Up ") == 3
	})
	p.KillHost(p.Hosts[2])
	took := awaitHops(p, web.VIP, p.Hosts[0], p.Hosts[1])
	t.Logf("the route by the dead host was gone after %v", took)
	if took > time.Second+busy/2 {
		t.Errorf("the dead host had a route for %v, want 1s", took)
	}
}

// password writes a password into a file that its owner alone may read.
func password(t *testing.T, text string) string {
	f, err := os.CreateTemp("", "bgp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if _, err := f.WriteString(text + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestARouterThatDoesNotAnswerIsNamed starts hosts with a wrong number, a wrong password and the
// address of no machine. `pando hosts` names the cause.
func TestARouterThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 1, Router: &lab.BGP{}, Idle: true,
		Flags: []string{"--pool", "0"}})
	h := p.Host()
	for args, want := range map[string]string{
		"--bgp-router 10.126.0.253":                      "want ADDRESS=AS",
		"--bgp-as 0":                                     "--bgp-as",
		"--bgp-hold 1s":                                  "--bgp-hold 1s: want whole seconds from 3s",
		"--bgp-password-file /no/file":                   "there is no file /no/file",
		"--bgp-router 10.126.0.253=1":                    "names 10.126.0.253 twice",
		"--bgp-password-file " + password(t, "a\nb"):     "want one line",
		"--bgp-bfd 1ms":                                  "--bgp-bfd 1ms",
		"--announce rip":                                 "want arp, bgp or none",
		"--bgp-as 64512 --bgp-router 10.126.0.253=65535": "no number of an autonomous system",
	} {
		if out := p.UpFails(3, h, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("pando up %s prints %q, want %q", args, out, want)
		}
	}
	p.Up(h, "--bgp-as", "64999", "--bgp-router", "10.126.0.77=64500")
	p.Await("the causes in pando hosts", func() (string, bool) {
		out := p.Pando("hosts")
		return out, strings.Contains(out, "10.126.0.253 (AS 64500): the router refuses the session") &&
			strings.Contains(out, "10.126.0.77 (AS 64500): no machine has this address")
	})
}
