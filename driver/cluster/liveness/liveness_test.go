package liveness

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

const patience = time.Minute

// cluster is a set of probers on addresses of the loopback network, by name.
type cluster struct {
	testing.TB
	port  int
	hosts []pando.Host
	at    map[pando.HostName]*Prober
	doors map[pando.HostName]*door // the ports of their agents
}

// behind is the clock of a host whose clock is a minute behind.
type behind struct{ clock.Clock }

func (b behind) Now() time.Time { return b.Clock.Now().Add(-time.Minute) }

// door is the listener of an agent. A frozen agent leaves connections to its kernel.
type door struct {
	net.Listener
	frozen atomic.Bool
}

func (d *door) serve() {
	for {
		c, err := d.Accept()
		if err != nil {
			return
		}
		if !d.frozen.Load() {
			c.Close()
		} else {
			defer c.Close()
		}
	}
}

// subnets gives each cluster its own addresses, so that tests may run beside each other.
var subnets = make(chan int, 100)

func init() {
	for n := range cap(subnets) {
		subnets <- n
	}
}

func newCluster(t testing.TB, size int) *cluster {
	c := &cluster{TB: t, at: map[pando.HostName]*Prober{},
		doors: map[pando.HostName]*door{}}
	subnet := <-subnets
	for n := range size {
		c.add(netip.AddrFrom4([4]byte{127, 91, byte(subnet), byte(n + 1)}))
	}
	l, err := net.Listen("tcp", c.hosts[0].Address.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	c.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	for _, h := range c.hosts {
		c.start(h, key)
	}
	return c
}

// add gives the cluster a host with an agent's port, and without a prober.
func (c *cluster) add(a netip.Addr) pando.Host {
	c.Helper()
	l, err := net.Listen("tcp", a.String()+":0")
	if err != nil {
		c.Fatal(err)
	}
	h := pando.Host{
		Name: pando.HostName(fmt.Sprintf("h%d", len(c.hosts)+1)), Address: a,
		Endpoint: "https://" + l.Addr().String(),
	}
	d := &door{Listener: l}
	c.Cleanup(func() { l.Close() })
	go d.serve()
	c.hosts, c.doors[h.Name] = append(c.hosts, h), d
	return h
}

var key = bytes.Repeat([]byte{7}, 32)

func (c *cluster) start(h pando.Host, key []byte) *Prober {
	c.Helper()
	at := netip.AddrPortFrom(h.Address, uint16(c.port))
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		c.Fatal(err)
	}
	p, err := Open(Config{
		Own: h.Name, Address: h.Address, Port: c.port, Key: key, Listener: l,
		Clock: behind{},
	})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { p.Close() })
	p.Watch(c.hosts)
	c.at[h.Name] = p
	return p
}

// meets waits until a host counts n hosts as alive, with itself.
func (c *cluster) meets(h pando.HostName, n int) {
	c.Helper()
	c.await(fmt.Sprintf("%s to meet %d hosts", h, n-1), func() bool {
		return c.at[h].list.NumMembers() == n
	})
}

func (c *cluster) await(what string, ok func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			c.Fatalf("waited %v for %s", patience, what)
		}
		_ = pause(context.Background(), 5*time.Millisecond)
	}
}

// silence makes a host answer nothing, as a frozen one: its kernel accepts, and no program reads.
func (c *cluster) silence(h pando.HostName) {
	c.doors[h].frozen.Store(true)
	c.at[h].wire.socket.Close()
}

func (c *cluster) deadAt(h pando.HostName) []pando.HostName { return c.at[h].Dead() }

func TestASilentHostIsDeadWithinASecond(t *testing.T) {
	c := newCluster(t, 4)
	for _, h := range c.hosts {
		c.meets(h.Name, 4)
	}
	news := c.at["h1"].Changed()
	c.silence("h3")
	began := time.Now()
	select {
	case <-news:
	case <-time.After(patience):
		t.Fatal("nobody noticed")
	}
	t.Logf("noticed after %v", time.Since(began))
	for _, h := range []pando.HostName{"h1", "h2", "h4"} {
		c.await(string(h)+" to find h3 dead", func() bool {
			return slices.Equal(c.deadAt(h), []pando.HostName{"h3"})
		})
	}
}

func TestAHostWhoseAgentAloneEndsIsNotDead(t *testing.T) {
	c := newCluster(t, 3)
	c.meets("h1", 3)
	c.doors["h2"].Close() // its kernel refuses connections
	if err := c.at["h2"].Close(); err != nil {
		t.Fatal(err)
	}
	c.meets("h1", 2)
	if dead := c.deadAt("h1"); len(dead) > 0 {
		t.Fatalf("%v count as dead, and the kernel refuses connections", dead)
	}
	c.start(c.hosts[1], key)
	c.meets("h1", 3) // and it comes back at once
	if dead := c.deadAt("h1"); len(dead) > 0 {
		t.Errorf("%v count as dead", dead)
	}
}

func TestAHostThatComesBackIsForgiven(t *testing.T) {
	c := newCluster(t, 3)
	c.meets("h1", 3)
	c.silence("h2")
	c.await("h2 to be dead", func() bool { return len(c.deadAt("h1")) == 1 })
	c.doors["h2"].frozen.Store(false)
	c.await("its port to answer", func() bool { return len(c.deadAt("h1")) == 0 })
	c.at["h2"].Close()
	c.start(c.hosts[1], key)
	c.meets("h1", 3)
	c.await("h2 to be forgiven", func() bool { return len(c.deadAt("h1")) == 0 })
	c.silence("h2")
	c.await("h2 to be dead again", func() bool { return len(c.deadAt("h1")) == 1 })
	c.at["h1"].Watch([]pando.Host{c.hosts[2]})
	if dead := c.deadAt("h1"); len(dead) > 0 {
		t.Errorf("%v count as dead and are no members", dead)
	}
}

// A host with another key, or at an address of no member, changes nothing and is counted.
func TestForgedProbesAreDroppedAndCounted(t *testing.T) {
	c := newCluster(t, 2)
	c.meets("h1", 2)
	send := func(from netip.Addr, b []byte) {
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.hosts[0].Address, uint16(c.port)))
		s, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), to)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	own := c.at["h1"].wire
	sealed := own.seal.Seal(make([]byte, 24), make([]byte, 24), []byte{4, 1, 2, 3}, nil)
	forged := [][]byte{{}, {1}, bytes.Repeat([]byte{1}, 24), bytes.Repeat([]byte{9}, 1000),
		append(slices.Clone(sealed[:len(sealed)-1]), sealed[len(sealed)-1]^1)}
	for n, b := range forged {
		send(c.hosts[1].Address, b) // from a member's address, without the key
		c.await("it to be counted", func() bool { return own.forged.Load() == uint64(n+1) })
	}
	send(netip.MustParseAddr("127.92.0.1"), sealed) // with the key, from a stranger's address
	c.await("the stranger to be counted", func() bool {
		return c.at["h1"].Forged() == uint64(len(forged)+1)
	})
	c.start(c.add(netip.MustParseAddr("127.92.0.3")), bytes.Repeat([]byte{8}, 32))
	before := c.at["h1"].Forged()
	c.await("its stream to be counted", func() bool { return c.at["h1"].Forged() > before })
	if n := c.at["h1"].list.NumMembers(); n != 2 {
		t.Errorf("h1 has %d members, want 2", n)
	}
}

func TestOpenRefusesAWrongKeyAndATakenPort(t *testing.T) {
	c := newCluster(t, 1)
	config := c.at["h1"].Config
	config.Key = key[:5]
	if _, err := Open(config); err == nil {
		t.Error("a key of 5 bytes was taken")
	}
	config.Key = key
	if _, err := Open(config); err == nil {
		t.Error("a taken port was taken again")
	}
}

// An agent that starts while another host is dead has never met that host.
func TestAHostThatWasNeverMet(t *testing.T) {
	c := newCluster(t, 1)
	old, gone := c.add(netip.MustParseAddr("127.93.0.1")), c.add(netip.MustParseAddr("127.93.0.2"))
	c.doors[gone.Name].frozen.Store(true)
	c.at["h1"].Watch(c.hosts)
	c.await(string(gone.Name)+" to be dead", func() bool {
		return slices.Equal(c.deadAt("h1"), []pando.HostName{gone.Name})
	})
	c.await("the questions to "+string(old.Name), func() bool {
		p := c.at["h1"]
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.lost[old.Name] != nil
	})
	if dead := c.deadAt("h1"); slices.Contains(dead, old.Name) {
		t.Errorf("%v count as dead: a host of an earlier build is among them", dead)
	}
}

// A host that has no descriptor left learns nothing about another one.
func TestAHostThatCannotAskCallsNobodyDead(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	p := &Prober{Config: Config{Clock: behind{}}}
	const nobody = "127.0.0.1:1"
	if answers, err := p.answers(t.Context(), "h2", nobody); err != nil || !answers {
		t.Fatalf("its kernel refuses: %t, %v", answers, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	answers, err := p.answers(t.Context(), "h2", nobody)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err == nil || answers {
		t.Errorf("without a descriptor: %t, %v", answers, err)
	}
}

// An agent that listens at another port is asked there.
func TestWatchSeesAnotherPort(t *testing.T) {
	p := &Prober{hurry: make(chan struct{}, 1)}
	h := pando.Host{Name: "h2", Address: netip.MustParseAddr("192.0.2.2")}
	for _, at := range []string{"192.0.2.2:7403", "192.0.2.2:7503"} {
		h.Endpoint = "https://" + at
		p.Watch([]pando.Host{h})
		if got := p.ports["h2"]; got != at {
			t.Errorf("it is asked at %s, want %s", got, at)
		}
	}
}
