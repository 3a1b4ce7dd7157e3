package attach

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bench is a network namespace with a veth pair. Programs at the pair's left end see the packets
// that the right end sends.
type bench struct {
	*testing.T
	left  netlink.Link
	right int // a packet socket
	pins  string
}

// newBench gives the test a thread in a namespace of its own. Both end together.
func newBench(t *testing.T) *bench {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	b := &bench{T: t, pins: t.TempDir()}
	b.check(unix.Unshare(unix.CLONE_NEWNET))
	b.check(rlimit.RemoveMemlock())
	b.check(unix.Mount("bpf", b.pins, "bpf", 0, ""))
	t.Cleanup(func() { b.check(unix.Unmount(b.pins, unix.MNT_DETACH)) })
	b.check(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "left"}, PeerName: "right",
	}))
	b.left = b.up("left")
	right := b.up("right")
	var err error
	b.right, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	b.check(err)
	t.Cleanup(func() { unix.Close(b.right) })
	b.check(unix.Bind(b.right, &unix.SockaddrLinklayer{Ifindex: right.Attrs().Index}))
	return b
}

func (b *bench) up(name string) netlink.Link {
	l, err := netlink.LinkByName(name)
	b.check(err)
	b.check(netlink.LinkSetUp(l))
	return l
}

func (b *bench) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// attach runs a program and lets go of it, as a process does that ends.
func (b *bench) attach(at Place, c counter) {
	b.Helper()
	h, err := Attach(at, c.Program)
	b.check(err)
	b.check(h.Close())
}

// detach ends a program, and waits until n tcx links are left.
func (b *bench) detach(pin string, n int) {
	b.Helper()
	b.check(Detach(pin))
	deadline := time.Now().Add(30 * time.Second)
	for {
		left, err := link.QueryPrograms(link.QueryOptions{
			Target: b.left.Attrs().Index, Attach: ebpf.AttachTCXIngress,
		})
		if b.check(err); len(left.Programs) == n {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d links are left, want %d", len(left.Programs), n)
		}
		runtime.Gosched()
	}
}

// counter is a program that counts test packets, with its map. After it the next program runs.
type counter struct {
	*ebpf.Program
	seen *ebpf.Map
}

// etherType marks the packets of the tests.
const etherType = 0x88b5

func (b *bench) counter(verdict int64) counter {
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	b.check(err)
	b.Cleanup(func() { seen.Close() })
	const protocol = 16 // of struct __sk_buff
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, protocol, asm.Word),
			asm.JNE.Imm(asm.R2, etherType>>8|etherType&0xff<<8, "out"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.LoadImm(asm.R0, verdict, asm.DWord).WithSymbol("out"),
			asm.Return(),
		}})
	b.check(err)
	b.Cleanup(func() { p.Close() })
	return counter{p, seen}
}

// send sends one packet to the left end, and waits until the counter has it.
func (b *bench) send(wants ...counter) {
	b.Helper()
	before := make([]uint64, len(wants))
	for i, c := range wants {
		b.check(c.seen.Lookup(uint32(0), &before[i]))
	}
	frame := make([]byte, 60)
	copy(frame, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	frame[12], frame[13] = etherType>>8, etherType&0xff
	_, err := unix.Write(b.right, frame)
	b.check(err)
	deadline := time.Now().Add(30 * time.Second)
	for i, c := range wants {
		for now := before[i]; now != before[i]+1; {
			b.check(c.seen.Lookup(uint32(0), &now))
			if time.Now().After(deadline) {
				b.Fatalf("program %d did not count the packet: %d after %d", i, now, before[i])
			}
			runtime.Gosched()
		}
	}
}

func (b *bench) count(c counter) (n uint64) {
	b.check(c.seen.Lookup(uint32(0), &n))
	return n
}

const (
	next = -1 // TCX_NEXT, and TC_ACT_UNSPEC
	drop = 2
)

// Both mechanisms keep a program at its pin without the process, replace it and end it.
func TestAProgramStaysAtItsPinUntilItIsDetached(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		t.Run(fmt.Sprintf("clsact %v", clsact), func(t *testing.T) {
			b := newBench(t)
			at := Place{Pin: filepath.Join(b.pins, "one"), IfIndex: b.left.Attrs().Index, Clsact: clsact}
			first, second, third := b.counter(next), b.counter(next), b.counter(next)
			b.attach(at, first)
			b.send(first)
			b.attach(at, second) // a later process, with a newer program
			b.send(second)
			b.check(Replace(at.Pin, third.Program))
			b.send(third)
			if n := b.count(first); n != 1 {
				t.Errorf("a replaced program counted %d packets, want 1", n)
			}
			b.detach(at.Pin, 0)
			b.detach(at.Pin, 0) // no error
			last := b.counter(next)
			h, err := Attach(Place{IfIndex: at.IfIndex, Clsact: clsact}, last.Program)
			b.check(err)
			b.send(last)
			if n := b.count(third); n != 1 {
				t.Errorf("a detached program counted %d packets, want 1", n)
			}
			b.check(h.Close())
			if left := b.filters(); left != 0 {
				t.Errorf("%d filters or queues are left", left)
			}
		})
	}
}

// filters counts the clsact queues of the left end.
func (b *bench) filters() (n int) {
	all, err := netlink.QdiscList(b.left)
	b.check(err)
	for _, q := range all {
		if q.Type() == "clsact" {
			n++
		}
	}
	return n
}

// The walls run before steering, also if they come second.
func TestTheFirstPlaceRunsBeforeAllOthers(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		t.Run(fmt.Sprintf("clsact %v", clsact), func(t *testing.T) {
			b := newBench(t)
			steering, walls := b.counter(next), b.counter(drop)
			index := b.left.Attrs().Index
			b.attach(Place{Pin: filepath.Join(b.pins, "steering"), IfIndex: index, Clsact: clsact}, steering)
			b.send(steering)
			wall := Place{Pin: filepath.Join(b.pins, "walls"), IfIndex: index, First: true, Clsact: clsact}
			b.attach(wall, walls)
			b.send(walls)
			if n := b.count(steering); n != 1 {
				t.Errorf("a packet passed the walls: steering counted %d, want 1", n)
			}
			b.detach(wall.Pin, map[bool]int{false: 1}[clsact])
			b.send(steering)
		})
	}
}

// A pin of a deleted device is no obstacle: the device's successor has another index.
func TestADeletedDeviceGivesUpItsPin(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		t.Run(fmt.Sprintf("clsact %v", clsact), func(t *testing.T) {
			b := newBench(t)
			c := b.counter(next)
			pin := filepath.Join(b.pins, "one")
			b.attach(Place{Pin: pin, IfIndex: b.left.Attrs().Index, Clsact: clsact}, c)
			b.check(netlink.LinkDel(b.left))
			b.check(Replace(pin, c.Program))
			if _, err := os.Lstat(pin); !os.IsNotExist(err) {
				t.Errorf("the pin is still there: %v", err)
			}
			b.check(Detach(pin))
		})
	}
}

// A pin that cannot be opened as a program's link is an error. A second program beside the first would
// do its work twice.
func TestAPinThatCannotBeOpenedIsAnError(t *testing.T) {
	b := newBench(t)
	c := b.counter(next)
	at := Place{Pin: filepath.Join(b.pins, "odd"), IfIndex: b.left.Attrs().Index}
	b.check(c.Program.Pin(at.Pin))
	_, err := Attach(at, c.Program)
	if err == nil || !strings.Contains(err.Error(), "open the pinned program "+at.Pin) {
		t.Errorf("the error is %v", err)
	}
}
