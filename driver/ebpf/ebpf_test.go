package ebpf

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// The tests run in network and mount namespaces of their own, so that they touch nothing of the machine.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: needs root")
		os.Exit(0)
	}
	if os.Getenv("PANDO_TEST_ALONE") == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), "PANDO_TEST_ALONE=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
		if err := cmd.Run(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check(unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
	check(unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""))
	lo, err := netlink.LinkByName("lo")
	check(err)
	check(netlink.LinkSetUp(lo))
	os.Exit(m.Run())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

var (
	web = pando.DefaultService("web")
	vip = netip.MustParseAddr("10.127.0.7")
	tcp = []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}, {Published: 53, Target: 5353, Protocol: pando.UDP}}
)

func open(t *testing.T, uplinks ...string) *Driver {
	t.Helper()
	d, err := Open(Config{PinDir: "/sys/fs/bpf/pando/t", Uplinks: uplinks, Buckets: buckets})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Purge(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// buckets gives each endpoint its share, interleaved.
func buckets(ids []string, weights []int, size int) []uint16 {
	var turn []uint16
	for n, w := range weights {
		for range w {
			turn = append(turn, uint16(n))
		}
	}
	if len(turn) == 0 {
		return nil
	}
	out := make([]uint16, size)
	for n := range out {
		out[n] = turn[n*7919%len(turn)]
	}
	return out
}

// box is one end of a link: a network namespace.
type box struct {
	ns   netns.NsHandle
	link pando.Link
}

// newBox makes a namespace behind a link, as driver/process does.
func newBox(t *testing.T, n int, vips ...netip.Addr) *box {
	t.Helper()
	b := &box{link: pando.Link{Host: fmt.Sprintf("pd%d", n), IP4: netip.AddrFrom4([4]byte{10, 128, 0, byte(n + 2)})}}
	done := make(chan error)
	go func() { // its thread stays in the new namespace and ends with it
		runtime.LockOSThread()
		var err error
		b.ns, err = netns.New()
		done <- err
	}()
	check(<-done)
	inside, err := netlink.NewHandleAt(b.ns)
	check(err)
	defer inside.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(b.ns))}
	veth.Name = b.link.Host
	check(netlink.LinkAdd(veth))
	outer, err := netlink.LinkByName(b.link.Host)
	check(err)
	inner, err := inside.LinkByName("eth0")
	check(err)
	lo, err := inside.LinkByName("lo")
	check(err)
	check(inside.LinkSetUp(lo))
	check(inside.LinkSetUp(inner))
	check(netlink.LinkSetUp(outer))
	own := func(a netip.Addr) *netlink.Addr { return &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())} }
	check(inside.AddrAdd(inner, own(b.link.IP4)))
	for _, v := range vips {
		check(inside.AddrAdd(lo, own(v)))
	}
	gateway := net.IPv4(169, 254, 1, 1)
	check(inside.NeighAdd(&netlink.Neigh{LinkIndex: inner.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: outer.Attrs().HardwareAddr}))
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	check(inside.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Dst: all, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}))
	check(netlink.RouteAdd(&netlink.Route{LinkIndex: outer.Attrs().Index, Dst: netlink.NewIPNet(b.link.IP4.AsSlice()), Scope: netlink.SCOPE_LINK}))
	check(netlink.NeighSet(&netlink.Neigh{LinkIndex: outer.Attrs().Index, State: netlink.NUD_PERMANENT, IP: b.link.IP4.AsSlice(), HardwareAddr: inner.Attrs().HardwareAddr}))
	b.link.IfIndex, b.link.MAC, b.link.HostMAC = outer.Attrs().Index, inner.Attrs().HardwareAddr, outer.Attrs().HardwareAddr
	b.link.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(b.ns))
	t.Cleanup(func() {
		_ = netlink.LinkDel(outer)
		b.ns.Close()
	})
	deadline := time.Now().Add(3 * time.Second)
	for {
		x, err := netlink.LinkByIndex(outer.Attrs().Index)
		check(err)
		y, err := inside.LinkByIndex(inner.Attrs().Index)
		check(err)
		if x.Attrs().OperState == netlink.OperUp && y.Attrs().OperState == netlink.OperUp || time.Now().After(deadline) {
			return b
		}
	}
}

// inside runs f on a thread in the box's namespace.
func (b *box) inside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		check(netns.Set(b.ns))
		f()
	}()
	<-done
}

// serve answers every line with the box's name.
func (b *box) serve(t *testing.T, name string) {
	b.inside(func() {
		l, err := net.Listen("tcp4", "0.0.0.0:8080")
		check(err)
		u, err := net.ListenPacket("udp4", "0.0.0.0:5353")
		check(err)
		t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					in := bufio.NewScanner(c)
					for in.Scan() {
						fmt.Fprintln(c, name)
					}
				}()
			}
		}()
		go func() {
			p := make([]byte, 100)
			for {
				_, from, err := u.ReadFrom(p)
				if err != nil {
					return
				}
				_, _ = u.WriteTo([]byte(name), from)
			}
		}()
	})
}

func (b *box) endpoint(name string, weight int) pando.Endpoint {
	return pando.Endpoint{Instance: pando.InstanceID(name), Weight: weight, Link: b.link}
}

func publish(t *testing.T, d *Driver, e ...pando.Endpoint) {
	t.Helper()
	if err := d.Publish(t.Context(), pando.SteeringTable{Service: web, VIP4: vip, Ports: tcp, Endpoints: e}); err != nil {
		t.Fatal(err)
	}
}

// client is one connection to the VIP.
type client struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp4", vip.String()+":80", 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{c, bufio.NewReader(c)}
}

func (c *client) who(t *testing.T) string {
	t.Helper()
	check(c.SetDeadline(time.Now().Add(2 * time.Second)))
	fmt.Fprintln(c, "who")
	line, err := c.in.ReadString('\n')
	if err != nil {
		t.Fatalf("a connection is broken: %v", err)
	}
	return line[:len(line)-1]
}

func two(t *testing.T) (*Driver, *box, *box) {
	d := open(t)
	a, b := newBox(t, 0, vip), newBox(t, 1, vip)
	for n, x := range []*box{a, b} {
		x.serve(t, string(rune('a'+n)))
		if err := d.Connect(t.Context(), x.link, tcp, vip, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
	}
	return d, a, b
}

func TestFlowsAreSharedAndStay(t *testing.T) {
	d, a, b := two(t)
	publish(t, d, a.endpoint("a", 100), b.endpoint("b", 100))
	var clients []*client
	first := map[*client]string{}
	count := map[string]int{}
	for range 200 {
		c := dial(t)
		clients, first[c] = append(clients, c), c.who(t)
		count[first[c]]++
	}
	if count["a"] < 60 || count["b"] < 60 {
		t.Errorf("200 connections are shared %v", count)
	}
	same := func(when string) {
		t.Helper()
		for _, c := range clients {
			if who := c.who(t); who != first[c] {
				t.Fatalf("%s: a connection to %s is answered by %s", when, first[c], who)
			}
		}
	}
	publish(t, d, a.endpoint("a", 100), b.endpoint("b", 0))
	same("b drains")
	for range 50 {
		if who := dial(t).who(t); who != "a" {
			t.Fatalf("a new connection went to %s, which drains", who)
		}
	}
	publish(t, d, a.endpoint("a", 10), b.endpoint("b", 300))
	same("other weights")
	again, err := Open(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	same("another agent took over")
	if got, err := again.Published(t.Context()); err != nil || len(got) != 1 || got[0] != web {
		t.Errorf("published %v, %v", got, err)
	}
	d.objects.Close()
	d.objects = again.objects
}

func TestTheSweepKnowsWhatIsOver(t *testing.T) {
	d, a, b := two(t)
	publish(t, d, a.endpoint("a", 100), b.endpoint("b", 0))
	open := dial(t)
	open.who(t)
	done := dial(t)
	done.who(t)
	done.Close()
	deadline := time.Now().Add(3 * time.Second)
	for {
		r, err := d.Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Flows["a"] == 1 && r.Flows["b"] == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("flows are %v, want one to a", r.Flows)
		}
	}
	open.who(t)
	c, err := d.Counters(t.Context())
	if err != nil || len(c) != 2 {
		t.Fatalf("counters %v, %v", c, err)
	}
	for _, v := range c {
		if v.Instance == "a" && (v.Flows != 2 || v.Packets == 0) {
			t.Errorf("counters of a: %+v", v)
		}
	}
}

func TestUDPAnswersComeFromTheVIP(t *testing.T) {
	d, a, b := two(t)
	publish(t, d, a.endpoint("a", 100), b.endpoint("b", 0))
	c, err := net.Dial("udp4", vip.String()+":53")
	check(err)
	defer c.Close()
	check(c.SetDeadline(time.Now().Add(2 * time.Second)))
	_, err = io.WriteString(c, "who")
	check(err)
	p := make([]byte, 10)
	n, err := c.Read(p)
	if err != nil || string(p[:n]) != "a" {
		t.Fatalf("got %q, %v", p[:n], err)
	}
}

func TestDirectAccessAndSpoofing(t *testing.T) {
	d, a, b := two(t)
	publish(t, d, a.endpoint("a", 100), b.endpoint("b", 100))
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(b.link.IP4, 8080).String(), time.Second)
	check(err)
	if who := (&client{c, bufio.NewReader(c)}).who(t); who != "b" {
		t.Errorf("the address of b is answered by %s", who)
	}
	c.Close()
	l, err := net.ListenPacket("udp4", "10.127.0.1:9999")
	check(err)
	defer l.Close()
	a.inside(func() { // from the VIP, but not from a port of the service
		from := &net.UDPAddr{IP: vip.AsSlice(), Port: 7777}
		c, err := net.DialUDP("udp4", from, &net.UDPAddr{IP: net.IPv4(10, 127, 0, 1), Port: 9999})
		check(err)
		_, _ = c.Write([]byte("spoofed"))
		c.Close()
	})
	var perCPU []uint64
	check(d.objects.Drops.Lookup(uint32(0), &perCPU))
	sum := uint64(0)
	for _, n := range perCPU {
		sum += n
	}
	if sum != 1 {
		t.Errorf("%d packets were dropped as spoofed, want 1", sum)
	}
}

func TestPurgeLeavesNothing(t *testing.T) {
	d, err := Open(Config{PinDir: "/sys/fs/bpf/pando/t", Buckets: buckets})
	check(err)
	if err := d.Purge(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob("/sys/fs/bpf/pando*")
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := netlink.LinkByName(Device); err == nil {
		t.Errorf("%s is still there", Device)
	}
}
