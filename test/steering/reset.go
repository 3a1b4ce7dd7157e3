package steering

import (
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// pins is the folder of the pinned tables of driver/network/ebpf. Of several hosts, each has its name after
// it.
const pins = "/sys/fs/bpf/pando/t"

// pinned opens a pinned table of a driver.
func pinned(t *testing.T, folder, name string) *ebpf.Map {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(folder, "layout-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("pinned tables: %v, %v", dirs, err)
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(dirs[0], name), nil)
	check(t, err)
	return m
}

// heldIn returns the number of held flows of a family, of all services of a driver.
func heldIn(t *testing.T, folder string, six uint32) (n uint64) {
	t.Helper()
	m := pinned(t, folder, "held")
	defer m.Close()
	check(t, m.Lookup(2*pando.ServicesMax+six, &n))
	return n
}

// entries returns the number of entries of a pinned table.
func entries(t *testing.T, folder, name string) (n int) {
	t.Helper()
	m := pinned(t, folder, name)
	defer m.Close()
	var key, value []byte
	all := m.Iterate()
	for all.Next(&key, &value) {
		n++
	}
	check(t, all.Err())
	return n
}

// isReset reports whether the only held flow of a family counts as reset.
func isReset(t *testing.T, folder string, six int) bool {
	t.Helper()
	const flags, reset = 8, 4 // struct flow and FLOW_RST in bpf/pando.h
	m := pinned(t, folder, []string{"flows", "flows6"}[six])
	defer m.Close()
	var key, flow []byte
	all := m.Iterate()
	if !all.Next(&key, &flow) {
		t.Fatalf("no flow of family %d is held: %v", six, all.Err())
	}
	return binary.NativeEndian.Uint32(flow[flags:])&reset != 0
}

// resetEndsOnBothHosts checks that a flow ends on its client's host, which sees no packet of the
// instance: after an RST of the instance, and after one of the client. A forged RST ends nothing.
func resetEndsOnBothHosts(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish()
	near, far := pins+e.hosts[0].name(), pins+e.hosts[1].name()
	for six := range 2 {
		held := func(n, m uint64) func() bool {
			return func() bool {
				e.hosts[0].flows(t, "b")
				e.hosts[1].flows(t, "b")
				return heldIn(t, near, uint32(six)) == n && heldIn(t, far, uint32(six)) == m
			}
		}
		open := func() *client {
			c := e.dial("outside", six)
			c.who(t)
			c.acknowledge(t)
			c.who(t)
			return c
		}
		kept := open()
		eventually(t, "both hosts hold the flow", held(1, 1))
		forged := tcp(kept.LocalAddr().(*net.TCPAddr).AddrPort(), at(vip[six], 80), "R")
		l := e.outside.Link
		_, err := e.hosts[0].Try(Outside, l, forged.Bytes(l.MAC, l.HostMAC), false)
		check(t, err)
		if !isReset(t, near, six) {
			t.Error("the host of the client takes no notice of an RST")
		}
		kept.who(t)
		if isReset(t, near, six) {
			t.Error("a living flow counts as reset after a forged RST")
		}
		reset := open()
		eventually(t, "two flows are held", held(2, 2))
		if _, err := reset.ask("reset"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that the instance resets: %v", err)
		}
		eventually(t, "the flow that the instance has reset is gone", held(1, 1))
		aborted := open()
		eventually(t, "two flows are held again", held(2, 2))
		check(t, aborted.Conn.(*net.TCPConn).SetLinger(0))
		check(t, aborted.Close())
		eventually(t, "the flow that its client has reset is gone", held(1, 1))
		kept.who(t)
		check(t, kept.Close())
		eventually(t, "the last flow is gone", held(0, 0))
	}
}
