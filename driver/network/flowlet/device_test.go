package flowlet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// inNamespace runs the rest of the test in a network namespace of its own. Packets come in at the
// pair of devices in0–in1. Each unit has a pair, u0–v0, u1–v1 …, with v as the unit's end.
func inNamespace(t *testing.T, units int) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	here, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err == nil {
			runtime.UnlockOSThread()
		}
		here.Close()
		before.Close()
	})
	// With IPv6, the kernel's own multicast would be steered.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"),
		0); err != nil {
		t.Fatal(err)
	}
	pair(t, "in0", "in1", 1500)
	for u := range units {
		pair(t, fmt.Sprint("u", u), fmt.Sprint("v", u), 1500+HeaderBytes)
	}
}

func pair(t *testing.T, one, other string, mtu int) {
	t.Helper()
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: one, MTU: mtu}, PeerName: other, PeerMTU: uint32(mtu),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{one, other} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
}

// packetSocket sends and receives whole frames at a device.
func packetSocket(t *testing.T, device string) int {
	t.Helper()
	l, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	patience := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	return fd
}

// receive returns the next frame with a metadata header.
func receive(t *testing.T, fd int) []byte {
	t.Helper()
	frame := make([]byte, 2000)
	for {
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if err != nil {
			t.Fatalf("no frame came: %v", err)
		}
		if n > 14 && binary.BigEndian.Uint16(frame[12:]) == 0x88b5 {
			return frame[:n]
		}
	}
}

func bpffs(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bpf")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "in1")
}

func openAt(t *testing.T, pins string, units int) *Driver {
	t.Helper()
	d, err := Open(Config{PinDir: pins, Device: "in1", Rule: DefaultRule(1e9, 4)})
	if err != nil {
		t.Fatal(err)
	}
	for u := range units {
		if err := d.SetUnit(u, fmt.Sprint("u", u)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestAPacketOfFullSizeReachesItsUnitAndGoesOnWithoutAProcess(t *testing.T) {
	inNamespace(t, 2)
	pins := bpffs(t)
	d := openAt(t, pins, 2)
	if err := d.Tick(0b10, 0b11, map[int]time.Duration{0: 0, 1: 0}); err != nil {
		t.Fatal(err)
	}
	in, unit := packetSocket(t, "in0"), packetSocket(t, "v1")
	send := func(clock uint64) {
		t.Helper()
		frame := frameOf(0, 1514, false)
		if _, err := unix.Write(in, frame); err != nil {
			t.Fatal(err)
		}
		if h := readHeader(t, receive(t, unit), frame); h.Unit != 1 || h.Clock != clock {
			t.Fatalf("header %+v, want unit 1 and clock %d", h, clock)
		}
	}
	send(1)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	send(2)
	d = openAt(t, pins, 2)
	send(3)
	if c, err := d.Counts(); err != nil || c.Packets != 3 || c.Flows != 1 || c.Bytes != 3*1514 {
		t.Errorf("counted %+v, %v", c, err)
	}
	if bytes, accepting, err := d.Demand(); err != nil || bytes != 3*1514 || accepting != 0b10 {
		t.Errorf("demand of %d bytes, units %b, %v", bytes, accepting, err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pins); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins are left behind: %v", err)
	}
}

// reply returns a unit's frame: the changed header of a received frame, then another packet.
func reply(h header, frame []byte) []byte {
	out, err := binary.Append(append([]byte{}, frame[:14]...), binary.LittleEndian, &h)
	if err != nil {
		panic(err)
	}
	return append(out, frame[14:]...)
}

func TestBothWaysOfATranslatedFlowMeetAtItsUnit(t *testing.T) {
	inNamespace(t, 1)
	pair(t, "out0", "out1", 1500)
	d, err := Open(Config{Device: "in1", Out: "out1", Rule: DefaultRule(1e9, 4)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(d.SetUnit(0, "u0"), d.Tick(1, 1, nil)); err != nil {
		t.Fatal(err)
	}
	in, out, unit := packetSocket(t, "in0"), packetSocket(t, "out0"), packetSocket(t, "v0")
	exchange := func(from int, frame []byte) header {
		t.Helper()
		if _, err := unix.Write(from, frame); err != nil {
			t.Fatal(err)
		}
		return readHeader(t, receive(t, unit), frame)
	}
	there, translated, answer := frameOf(2, 200, false), frameOf(4, 200, false), frameOf(4, 120, true)
	h := exchange(in, there)
	if h.Flags != 1 || h.Clock != 1 {
		t.Fatalf("header %+v", h)
	}
	key := h.Key
	h.Flags = 4
	if _, err := unix.Write(unit, reply(h, translated)); err != nil {
		t.Fatal(err)
	}
	if got := receiveAny(t, out, 200); string(got) != string(translated) {
		t.Fatalf("%x left, %x was sent", got, translated)
	}
	if h = exchange(out, answer); h.Flags&^1 != 2|4 || h.Clock != 2 || h.Key != key {
		t.Fatalf("the way back has header %+v, key %x", h, key)
	}
	if _, err := unix.Write(unit,
		reply(header{Version: 2, Flags: 2, Ethertype: h.Ethertype, Key: key}, answer)); err != nil {
		t.Fatal(err)
	}
	if got := receiveAny(t, in, 120); string(got) != string(answer) {
		t.Fatalf("%x came back, %x was sent", got, answer)
	}
	c, err := d.Counts()
	if err != nil || c.Returned != 2 || c.Aliases != 1 || c.Flows != 1 {
		t.Errorf("counted %+v, %v", c, err)
	}
	if left, err := d.Sweep(0); err != nil || left != 0 ||
		d.objects.FlowletAliases.Iterate().Next(&key, &key) {
		t.Errorf("%d flows are left, %v, or an alias", left, err)
	}
}

// receiveAny returns the next frame of the given size.
func receiveAny(t *testing.T, fd, bytes int) []byte {
	t.Helper()
	frame := make([]byte, 2000)
	for {
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if err != nil {
			t.Fatalf("no frame came: %v", err)
		}
		if n == bytes {
			return frame[:n]
		}
	}
}

func TestWhatCannotBeSteeredIsRefusedWithTheNextStep(t *testing.T) {
	inNamespace(t, 1)
	pair(t, "narrow0", "narrow1", 1500)
	d := openAt(t, "", 1)
	defer d.Close()
	if err := d.SetUnit(1, "narrow0"); !errors.Is(err, ErrMTU) {
		t.Errorf("a unit without room for the header: %v", err)
	}
	// A unit that has just died has no device.
	if err := d.SetUnit(1, "none0"); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a unit without a device: %v", err)
	}
	if err := d.SetUnit(4, "u0"); err == nil {
		t.Error("a unit beyond the pool was taken")
	}
	if err := d.Tick(1<<4, 0, nil); err == nil {
		t.Error("a unit beyond the pool accepts")
	}
	if _, err := Open(Config{Device: "nowhere", Rule: DefaultRule(1e9, 1)}); err == nil {
		t.Error("steering at no device")
	}
	for _, bad := range []Rule{{}, DefaultRule(1e9, 65), DefaultRule(0, 1)} {
		if _, err := Open(Config{Rule: bad}); err == nil {
			t.Errorf("rule %+v was taken", bad)
		}
	}
}

// A walk through the flow table takes half a second, so the group walks beside its ticks. The race
// detector finds state that both use.
func TestTheFlowTableIsWalkedBesideTheTicks(t *testing.T) {
	inNamespace(t, 1)
	d := openAt(t, "", 1)
	defer d.Close()
	walked := make(chan error)
	go func() {
		var errs []error
		for range 100 {
			_, referred := d.Referred()
			_, swept := d.Sweep(time.Hour)
			errs = append(errs, referred, swept)
		}
		walked <- errors.Join(errs...)
	}()
	for range 100 {
		_, _, err := d.Demand()
		err = errors.Join(err, d.Tick(1, 1, map[int]time.Duration{0: 1}), d.UnsetUnit(0, "u0"))
		if err = errors.Join(err, d.SetUnit(0, "u0")); err != nil {
			t.Error(err)
		}
	}
	if err := <-walked; err != nil {
		t.Error(err)
	}
}
