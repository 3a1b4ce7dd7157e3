package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

// onLink makes the VIPs a part of the client's own network: it has no route to a host.
func onLink(p *labtest.Pando) {
	p.Helper()
	for _, command := range []string{
		"ip route del 10.127.0.0/16", "ip -6 route del fd70:616e:646f:ffff::/64",
		"ip addr add 10.126.0.254/15 dev eth0",
		"ip -6 addr del fd70:616e:646f::fe/64 dev eth0",
		"ip -6 addr add fd70:616e:646f::fe/48 dev eth0 nodad",
	} {
		p.Must(labtest.Client, strings.Fields(command)...)
	}
	if out := p.Must(labtest.Client, "ip", "route"); strings.Contains(out, "via") {
		p.Fatalf("the client has a route to a host:\n%s", out)
	}
}

// holder returns the host that the client has found for a VIP.
func holder(p *labtest.Pando, vip string) (name string, ok bool) {
	p.Helper()
	out := p.Run(labtest.Client, "ip", "neigh", "show", vip).Text
	for n, h := range p.Hosts {
		if strings.Contains(out, fmt.Sprintf("02:70:61:6e:00:%02x", n+1)) {
			return h, true
		}
	}
	return out, false
}

// talk is a connection to one instance.
type talk struct {
	net.Conn
	read *bufio.Reader
	host pando.HostName // of the instance
}

// ask asks for the page and returns the instance that answers.
func (c *talk) ask(within time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: web\r\n\r\n")); err != nil {
		return "", err
	}
	r, err := http.ReadResponse(c.read, nil)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	line, err := bufio.NewReader(r.Body).ReadString('\n')
	name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return name, err
}

// talks opens connections to a service from the client.
func talks(p *labtest.Pando, web *labtest.Service, n int) (all []*talk) {
	p.Helper()
	at := map[string]pando.HostName{}
	for _, i := range web.Status().Instances {
		at[string(i.ID)] = i.Host
	}
	dial := p.Dialer(labtest.Client)
	for range n {
		conn, err := dial(web.VIP + ":80")
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { conn.Close() })
		c := &talk{Conn: conn, read: bufio.NewReader(conn)}
		name, err := c.ask(labtest.Patience)
		if err != nil {
			p.Fatalf("a new connection to %s: %v", web.VIP, err)
		}
		c.host = at[name]
		all = append(all, c)
	}
	return all
}

// dark returns how long new connections to a service fail.
func dark(p *labtest.Pando, web *labtest.Service) time.Duration {
	p.Helper()
	dial, began := p.DialerWithin(labtest.Client, 50*time.Millisecond), time.Now()
	for time.Since(began) < labtest.Patience {
		conn, err := dial(web.VIP + ":80")
		if err != nil {
			continue
		}
		c := &talk{Conn: conn, read: bufio.NewReader(conn)}
		_, err = c.ask(50 * time.Millisecond)
		conn.Close()
		if err == nil {
			return time.Since(began)
		}
		_ = pando.Sleep(p.Context(), clock.Clock{}, time.Millisecond)
	}
	p.Fatalf("%s is dark for %s", web.VIP, labtest.Patience)
	return 0
}

// TestAClientWithoutARouteReachesAVIPWhenItsHostDies kills the host that answers for a VIP. Another
// host answers within a second. Every connection to an instance of a living host survives.
func TestAClientWithoutARouteReachesAVIPWhenItsHostDies(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true,
		Flags: []string{"--pool", "1", "--announce", "arp"}})
	onLink(p)
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
	web.Await("instances on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 6 && len(seats(st)) == 3
	})
	web.AwaitPage(labtest.Client)
	first, ok := holder(p, web.VIP)
	if !ok {
		t.Fatalf("the client found %s at %q", web.VIP, first)
	}
	p.Await("pando hosts to name the holder", func() (string, bool) {
		out := p.Pando("hosts")
		return out, strings.Contains(out, first+" answers on 10.126.0.0/24 for "+web.VIP+" (")
	})
	all := talks(p, web, 120)
	p.KillHost(first)
	out := dark(p, web)
	broken, ended := 0, 0
	for _, c := range all {
		if string(c.host) == first {
			ended++
			continue
		}
		if _, err := c.ask(labtest.Patience); err != nil {
			t.Logf("a connection to an instance on %s: %v", c.host, err)
			broken++
		}
	}
	second, ok := holder(p, web.VIP)
	if !ok || second == first {
		t.Errorf("after the death of %s the client finds %s at %q", first, web.VIP, second)
	}
	t.Logf("dark for %v; of %d connections, %d ended with the host and %d others broke", out, len(all),
		ended, broken)
	if out > time.Second+busy {
		t.Errorf("the VIP was dark for %v, want 1s", out)
	}
	if broken > 0 || ended == len(all) {
		t.Errorf("%d connections broke that only entered through %s", broken, first)
	}
}

// TestAHolderThatGoesDownHandsItsVIPsOver stops Pando on the host that answers for a VIP. No
// connection to an instance of another host breaks.
func TestAHolderThatGoesDownHandsItsVIPsOver(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true,
		Flags: []string{"--pool", "1", "--announce", "arp"}})
	onLink(p)
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
	web.Await("instances on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 6 && len(seats(st)) == 3
	})
	web.AwaitPage(labtest.Client)
	first, ok := holder(p, web.VIP)
	if !ok {
		t.Fatalf("the client found %s at %q", web.VIP, first)
	}
	all := talks(p, web, 60)
	p.Down(first, "--drain", "100ms")
	broken := 0
	for _, c := range all {
		if string(c.host) == first {
			continue
		}
		if _, err := c.ask(labtest.Patience); err != nil {
			t.Logf("a connection to an instance on %s: %v", c.host, err)
			broken++
		}
	}
	if second, ok := holder(p, web.VIP); !ok || second == first || broken > 0 {
		t.Errorf("after `pando down` on %s, %s is at %q, and %d connections broke", first, web.VIP,
			second, broken)
	}
	if out := dark(p, web); out > busy {
		t.Errorf("new connections fail for %v", out)
	}
}

// busy is the time that a loaded machine may add to a figure.
const busy = 2 * time.Second
