package e2e

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// asker sends ARP requests from the client, below its kernel's table.
type asker struct {
	*labtest.Pando
	socket *os.File
	own    net.HardwareAddr
	vip    netip.Addr
}

// newAsker returns an asker for a VIP.
func newAsker(p *labtest.Pando, vip string) *asker {
	p.Helper()
	a := &asker{Pando: p, vip: netip.MustParseAddr(vip)}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // its thread stays in the client's network and ends with it
		done <- a.open()
	}()
	if err := <-done; err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { a.socket.Close() })
	return a
}

func (a *asker) open() error {
	ns, err := netns.GetFromPid(a.Lab.Client.Pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	eth, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	a.own = eth.HardwareAddr
	const protocol = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP<<8&0xff00 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a.socket = os.NewFile(uintptr(fd), "packets of the client")
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: eth.Index})
}

// ask sends one request, and returns the hosts that answer within a time, each once.
func (a *asker) ask(within time.Duration) (hosts []string) {
	a.Helper()
	f := make([]byte, 42)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], a.own)
	copy(f[12:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1})
	copy(f[22:], a.own)
	copy(f[28:], []byte{10, 126, 0, 254})
	copy(f[38:], a.vip.AsSlice())
	if _, err := a.socket.Write(f); err != nil {
		a.Fatal(err)
	}
	if err := a.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		a.Fatal(err)
	}
	for {
		n, err := a.socket.Read(f)
		if err != nil {
			return hosts
		}
		answers := n >= 32 && binary.BigEndian.Uint16(f[20:]) == 2
		if from, _ := netip.AddrFromSlice(f[28:32]); !answers || from != a.vip {
			continue
		}
		if slot := int(f[27]) - 1; slot >= 0 && slot < len(a.Hosts) {
			// A slow host may answer the former request as well.
			if !slices.Contains(hosts, a.Hosts[slot]) {
				hosts = append(hosts, a.Hosts[slot])
			}
		}
	}
}

// await asks until a host answers as wanted. No two hosts may answer one request.
func (a *asker) await(what string, want func(host string) bool) time.Duration {
	a.Helper()
	began := time.Now()
	for time.Since(began) < labtest.Patience {
		all := a.ask(20 * time.Millisecond)
		if len(all) > 1 {
			a.Fatalf("%v answer one request for %s while the test waits for %s", all, a.vip, what)
		}
		if len(all) == 1 && want(all[0]) {
			return time.Since(began)
		}
	}
	a.Fatalf("waited %s for %s", labtest.Patience, what)
	return 0
}

// TestAPausedHolderNeverAnswersBesideItsSuccessor freezes the host that answers for a VIP, then
// thaws it. At most one host answers each request, before, during and after.
func TestAPausedHolderNeverAnswersBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true,
		Flags: []string{"--pool", "1", "--announce", "arp"}})
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 3}"))
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	a, first := newAsker(p, web.VIP), ""
	a.await("a holder", func(host string) bool { first = host; return true })
	if err := p.Lab.Pause(first); err != nil {
		t.Fatal(err)
	}
	out := a.await("a successor", func(host string) bool { return host != first })
	if err := p.Lab.Resume(first); err != nil {
		t.Fatal(err)
	}
	back := a.await("the return of the holder", func(host string) bool { return host == first })
	t.Logf("a successor answered after %v, and %s again %v after its pause", out, first, back)
	if out > time.Second+busy {
		t.Errorf("the VIP had no answer for %v, want 1s", out)
	}
}
