package e2e

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// visit is an open connection of a member of the lab to a service.
type visit struct {
	guest
	from string
}

// visits opens connections to a service by both families: from each host without an instance of it,
// and from the client, whose packets come in at such a host.
func visits(p *labtest.Pando, s *labtest.Service, away ...string) (all []*visit) {
	p.Helper()
	st := s.Status()
	for _, from := range append(away, labtest.Client) {
		dial := p.Dialer(from)
		for _, vip := range []string{st.VIP, "[" + st.VIP6.String() + "]"} {
			conn, err := dial(vip + ":80")
			if err != nil {
				p.Fatalf("%s: connect to %s at %s: %v", from, s.Name, vip, err)
			}
			p.Cleanup(func() { conn.Close() })
			v := &visit{guest{conn: conn, in: bufio.NewReader(conn)}, from + " by " + vip}
			if v.by, err = v.ask(); err != nil {
				p.Fatalf("%s: %s: %v", v.from, s.Name, err)
			}
			all = append(all, v)
		}
	}
	return all
}

// unbroken checks that each connection still leads to its instance.
func unbroken(t *testing.T, when string, all []*visit) {
	t.Helper()
	for _, v := range all {
		if by, err := v.ask(); err != nil || by != v.by {
			t.Errorf("%s: from %s: a connection to %q is answered by %q, %v", when, v.from, v.by, by, err)
		}
	}
}

// TestConnectionsFromOtherHostsOutliveEachWayToLeave takes the last instances of services out in
// each way, while every connection comes in at another host than theirs. None breaks: the drain
// waits for them and names their clients.
func TestConnectionsFromOtherHostsOutliveEachWayToLeave(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	via := p.Lab.Hosts[0]
	p.Must(labtest.Client, "ip", "route", "replace", "10.127.0.0/16", "via", via.IPv4)
	p.Must(labtest.Client, "ip", "-6", "route", "replace", pando.VIPs6.String(), "via", via.IPv6)
	home, other := p.Hosts[2], p.Hosts[1]
	only := func(host string) string { return "place: {only: \"host=" + host + "\"}" }
	spec := func(name, host, text string, lines ...string) string {
		return labtest.Echo(name, append(lines, only(host), "environment: {TEXT: "+text+"}")...)
	}
	ways := []struct {
		name, scale string
		leave       func(s *labtest.Service, i pando.InstanceStatus)
	}{
		{"removed", "scale: {min: 2, max: 2}", func(s *labtest.Service, _ pando.InstanceStatus) {
			p.Pando("rm", s.Name)
		}},
		{"stopfirst", "scale: {max: 1}", func(s *labtest.Service, _ pando.InstanceStatus) {
			p.Pando("deploy", p.Write(s.Name+".yaml", spec(s.Name, home, "two", "scale: {max: 1}")))
		}},
		{"zero", "scale: {min: 0, max: 2, idle: 1h}", func(s *labtest.Service, _ pando.InstanceStatus) {
			p.Pando("scale", s.Name, "0")
		}},
		{"halted", "scale: {min: 0, max: 1, idle: 1h}",
			func(_ *labtest.Service, i pando.InstanceStatus) {
				if out := bySelf(p, i, "halt"); out.Code != 0 {
					t.Fatalf("halt: %s", out.Text)
				}
			}},
		{"spread", "scale: {min: 2, max: 2}", func(s *labtest.Service, _ pando.InstanceStatus) {
			p.Pando("rm", s.Name)
		}},
	}
	services, open := map[string]*labtest.Service{}, map[string][]*visit{}
	for _, w := range ways {
		lines := []string{w.scale}
		text := spec(w.name, home, "one", lines...)
		if w.name == "spread" {
			text = labtest.Echo(w.name, w.scale, "place: {spread: host, only: \"host="+home+"\"}")
		}
		s := p.Deploy(text)
		services[w.name] = s
		began := time.Now()
		open[w.name] = visits(p, s, p.Hosts[0], other)
		t.Logf("%s: %d connections within %v", w.name, len(open[w.name]), time.Since(began))
	}
	for _, w := range ways {
		s := services[w.name]
		w.leave(s, s.Status().Instances[0])
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			s := services[w.name]
			unbroken(t, "after the order", open[w.name])
			s.Await("a drain of "+s.Name+" that names its clients", func(st pando.ServiceStatus) bool {
				// The first of several instances may have one connection, or six.
				return strings.Contains(st.Reason, "connection, idle") ||
					strings.Contains(st.Reason, "connections, the most silent idle")
			})
			unbroken(t, "while it drains", open[w.name])
		})
	}
	dies(p, services["halted"], open["halted"])
	delete(open, "halted")
	t.Run("evacuated", func(t *testing.T) { evacuated(t, p.In(t), home, open) })
}

// dies ends the connections of an instance that halted itself, and then the instance. Its program
// would have 30 s for that.
func dies(p *labtest.Pando, s *labtest.Service, open []*visit) {
	p.Helper()
	last := s.Status().Instances[0]
	for _, v := range open {
		v.conn.Close()
	}
	p.Await("the death of the instance that halted itself", func() (string, bool) {
		out := bySelf(p, last, "die")
		// An instance that dies may end before its answer has left.
		gone := !slices.ContainsFunc(s.Status().Instances,
			func(i pando.InstanceStatus) bool { return i.ID == last.ID })
		return out.Text, out.Code == 0 || gone
	})
}

// bySelf asks Pando in the name of an instance of the echo program.
func bySelf(p *labtest.Pando, i pando.InstanceStatus, verb string) labtest.Output {
	p.Helper()
	own, _, _ := strings.Cut(i.Endpoint, ":")
	return p.Run(string(i.Host), "curl", "-sS", "--fail", "--max-time", "10",
		"http://"+own+":8080/self?path=/v1/self/"+verb+"&body=%7B%22reason%22:%22test%22%7D")
}

// evacuated empties a host of which a connection is open at another host. The connection lasts until
// its time is over.
func evacuated(t *testing.T, p *labtest.Pando, home string, open map[string][]*visit) {
	down := p.Start(home, p.Bin, "down", "--drain", "1m")
	web := p.API(p.Host())
	p.Await("the host leaves", func() (string, bool) {
		all, err := web.Hosts(p.Context())
		for _, h := range all {
			if string(h.Name) == home && h.Leaving {
				return "", true
			}
		}
		return fmt.Sprint(all, err), false
	})
	for name, all := range open {
		unbroken(t, "while the host of "+name+" leaves", all)
		for _, v := range all {
			v.conn.Close()
		}
	}
	closed := time.Now()
	defer func() { t.Logf("the host left %v after the last connection", time.Since(closed)) }()
	if out := down.Wait(); out.Code != 0 {
		t.Errorf("the host left with code %d: %s", out.Code, out.Text)
	}
}
