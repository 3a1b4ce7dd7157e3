package front

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// plainSteering steers nothing, and records the order of calls.
type plainSteering struct {
	pando.Steering
	calls []string
	err   error
}

func (s *plainSteering) Publish(_ context.Context, t pando.SteeringTable) error {
	s.calls = append(s.calls, "publish "+string(t.Service.Name))
	return s.err
}

func (s *plainSteering) Withdraw(_ context.Context, k pando.ServiceKey) error {
	s.calls = append(s.calls, "withdraw "+string(k.Name))
	return s.err
}

func (s *plainSteering) Neighbours(context.Context, []pando.Host) error { return s.err }

// inNetwork puts the test into a network namespace of its own with an uplink. It returns a folder
// for pins. The thread ends with the test.
func inNetwork(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("BPF programs need root")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1"}); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	pins := filepath.Join("/sys/fs/bpf", fmt.Sprintf("pando-front-%d-%s", os.Getpid(), t.Name()))
	t.Cleanup(func() {
		if err := Purge(pins); err != nil {
			t.Error(err)
		}
	})
	return pins
}

func config(pins string) Config {
	return Config{Pins: pins, Uplinks: []string{"up0"}, Slot: 3,
		Own4: netip.MustParseAddr("192.0.2.1"), Own6: netip.MustParseAddr("2001:db8::1")}
}

func open(t *testing.T, pins string) (*Steering, *plainSteering) {
	t.Helper()
	plain := &plainSteering{}
	f, err := Open(plain, config(pins))
	if err != nil {
		t.Fatal(err)
	}
	return f, plain
}

func table(name pando.ServiceName, ports ...pando.Port) pando.SteeringTable {
	v4, v6 := netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70:616e:646f:ffff::9")
	return pando.SteeringTable{Service: pando.DefaultService(name), VIP4: v4, VIP6: v6, Ports: ports,
		Endpoints: []pando.Endpoint{{Instance: "one"}}}
}

func tcp(host uint16) pando.Port {
	return pando.Port{Published: 80, Target: 8080, Protocol: pando.TCP, Host: host}
}

func wantPorts(t *testing.T, f *Steering, want ...string) {
	t.Helper()
	var got []string
	for _, p := range f.Ports() {
		got = append(got, p.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the ports of the host are %v, want %v", got, want)
	}
}

// A port follows the table of its service: it comes, moves, rests without instances, and goes. The
// next agent takes it over.
func TestAPortFollowsItsService(t *testing.T) {
	pins := inNetwork(t)
	f, _ := open(t, pins)
	dns := pando.Port{Published: 53, Target: 53, Protocol: pando.UDP, Host: 53}
	web := table("web", tcp(8443), dns)
	if err := f.Publish(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	wantPorts(t, f, "53/udp", "8443/tcp")
	if l, err := net.Listen("tcp", ":8443"); err == nil {
		l.Close()
		t.Error("a program can listen at a port of a service")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, plain := open(t, pins)
	defer f.Close()
	wantPorts(t, f, "53/udp", "8443/tcp")
	if err := f.Publish(t.Context(), table("web", tcp(9443))); err != nil {
		t.Fatal(err)
	}
	wantPorts(t, f, "9443/tcp")
	resting := table("web", tcp(9443))
	resting.Endpoints = nil
	if err := f.Publish(t.Context(), resting); err != nil {
		t.Fatal(err)
	}
	wantPorts(t, f)
	resting.Asleep = true // its first packet starts an instance
	if err := f.Publish(t.Context(), resting); err != nil {
		t.Fatal(err)
	}
	wantPorts(t, f, "9443/tcp")
	if err := f.Withdraw(t.Context(), web.Service); err != nil {
		t.Fatal(err)
	}
	wantPorts(t, f)
	want := []string{"publish web", "publish web", "publish web", "withdraw web"}
	if !slices.Equal(plain.calls, want) {
		t.Errorf("the steering behind is called %v, want %v", plain.calls, want)
	}
}

// A port that belongs to another program or service is named with its owner. The rest is in force.
func TestATakenPortNamesItsOwner(t *testing.T) {
	f, plain := open(t, inNetwork(t))
	defer f.Close()
	if err := f.Publish(t.Context(), table("web", tcp(8443))); err != nil {
		t.Fatal(err)
	}
	err := f.Publish(t.Context(), table("shop", tcp(8443)))
	taken, ok := errors.AsType[*pando.TakenError](err)
	if !ok || !strings.Contains(taken.Owner, "service") || !strings.Contains(taken.Owner, "web") ||
		!pando.InForce(err) || !errors.Is(err, pando.ErrConflict) {
		t.Errorf("a port of another service: %v", err)
	}
	if err := f.Withdraw(t.Context(), pando.DefaultService("web")); err != nil {
		t.Fatal(err)
	}
	if err := f.Publish(t.Context(), table("shop", tcp(8443))); err != nil {
		t.Errorf("a port that is free again: %v", err)
	}
	plain.err = errors.New("no steering")
	if err := f.Publish(t.Context(), table("late", tcp(9443))); !errors.Is(err, plain.err) {
		t.Errorf("without a steering: %v", err)
	}
	wantPorts(t, f, "8443/tcp")
}

// Each host has its front, so that an instance answers from the address that the client used.
func TestTheAddressesOfOtherHosts(t *testing.T) {
	f, _ := open(t, inNetwork(t))
	defer f.Close()
	far := pando.Host{Name: "far", Slot: 7, Address: netip.MustParseAddr("192.0.2.7")}
	own := func(slot uint32) (v frontOwn) {
		t.Helper()
		if err := f.objects.Owns.Lookup(slot, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if err := f.Neighbours(t.Context(), []pando.Host{far, {Slot: 3}}); err != nil {
		t.Fatal(err)
	}
	if own(7).Addr[0] != words(far.Address) || own(3).Addr[1] != words(f.Own6) {
		t.Errorf("the addresses are %v and %v", own(7), own(3))
	}
	if err := f.Neighbours(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if own(7) != (frontOwn{}) {
		t.Errorf("a host that left has %v", own(7))
	}
}

func TestTheLineOfASocket(t *testing.T) {
	const line = "   0: 0100007F:20FB 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 " +
		"4711 1 0000000000000000 100 0 0 10 0"
	for _, c := range []struct {
		line, state string
		port        uint16
		want        string
	}{
		{line, listens, 8443, "4711"}, {line, listens, 8444, ""}, {line, waits, 8443, ""},
		{"  sl  local_address rem_address   st", listens, 8443, ""},
		{strings.Replace(line, ":20FB", ":XX", 1), listens, 8443, ""}, {"", listens, 0, ""},
	} {
		if got := socketAt(c.line, c.state, c.port); got != c.want {
			t.Errorf("port %d in %q: %q, want %q", c.port, c.line, got, c.want)
		}
	}
	if name, own := holder("no number"); own || name == "" {
		t.Errorf("no socket: %q, %t", name, own)
	}
}
