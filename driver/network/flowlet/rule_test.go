package flowlet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
}

// stamped is a __sk_buff with only tstamp set.
type stamped struct {
	Before [152]byte
	Stamp  uint64
	After  [32]byte
}

const redirected = 7 // TCX_REDIRECT

// stampedDriver loads the program without a device, with the packets' stamps as its clock.
func stampedDriver(t testing.TB, rule Rule) *Driver {
	t.Helper()
	spec, err := loadFlowlet()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["time_is_stamp"].Set(uint32(1)); err != nil {
		t.Fatal(err)
	}
	d := &Driver{Config: Config{Rule: rule}}
	if err := d.load(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for id := range uint32(rule.Pool) {
		if err := d.objects.FlowletDevices.Put(id, uint32(1)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

type header struct {
	Version, Flags  uint8
	Ethertype       [2]byte
	Unit, Previous  uint16
	Epoch, Position uint32
	Clock, Replicas uint64
	Key             [40]byte
}

// steer runs the program over a frame and returns its verdict and the resulting frame.
func (d *Driver) steer(t testing.TB, frame []byte, at int64) (uint32, []byte) {
	t.Helper()
	out := make([]byte, len(frame)+256)
	options := ebpf.RunOptions{Data: frame, DataOut: out, Context: stamped{Stamp: uint64(at)}}
	verdict, err := d.objects.Flowlet.Run(&options)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, options.DataOut
}

func readHeader(t testing.TB, frame, before []byte) header {
	t.Helper()
	var h header
	if len(frame) != len(before)+HeaderBytes || binary.BigEndian.Uint16(frame[12:]) != 0x88b5 {
		t.Fatalf("a frame of %d bytes left as %d bytes with EtherType %x",
			len(before), len(frame), frame[12:14])
	}
	if string(frame[:12]) != string(before[:12]) ||
		string(frame[14+HeaderBytes:]) != string(before[14:]) {
		t.Fatal("the packet behind the header has changed")
	}
	if _, err := binary.Decode(frame[14:], binary.LittleEndian, &h); err != nil {
		t.Fatal(err)
	}
	return h
}

// frameOf makes a packet of conversation n, in one of its two directions.
func frameOf(n, length int, back bool) []byte {
	frame := make([]byte, length)
	protocol := []byte{17, 6}[n/2%2]
	src, dst := byte(1), byte(2)
	ports := []byte{0, byte(n), 1, 0xbb}
	if back {
		src, dst, ports = dst, src, []byte{1, 0xbb, 0, byte(n)}
	}
	if n%2 == 0 {
		copy(frame[12:], []byte{0x08, 0x00, 0x45})
		frame[23] = protocol
		copy(frame[26:], []byte{10, 0, 0, src, 10, 0, 0, dst})
		copy(frame[34:], ports)
	} else {
		copy(frame[12:], []byte{0x86, 0xdd, 0x60})
		frame[20] = protocol
		frame[22], frame[37], frame[38], frame[53] = 0xfd, src, 0xfd, dst
		copy(frame[54:], ports)
	}
	return frame
}

func mask(units []int) (m uint64) {
	for _, u := range units {
		m |= 1 << u
	}
	return m
}

// world runs the program and the model side by side.
type world struct {
	t     testing.TB
	r     *rand.Rand
	d     *Driver
	m     *model
	flows [24]modelFlow
	now   int64
	// pauses has the longest pauses between packets.
	pauses []int
}

func newWorld(t testing.TB, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	rule := DefaultRule(uint64(1+r.IntN(4))*500_000_000, 1+r.IntN(Units))
	rule.SizeBytes = []uint32{0, 3000, 10_000, 30_000}[r.IntN(4)]
	rule.Targets = uint32(r.IntN(4))
	rule.Stick = time.Duration(r.IntN(3)) * 60 * time.Microsecond
	rule.Grow = time.Duration(r.IntN(4)) * 30 * time.Microsecond
	rule.Crowded = time.Duration(r.IntN(3)) * 30 * time.Microsecond
	rule.PacketNS = uint32(r.IntN(300))
	kernel, err := rule.kernel()
	if err != nil {
		t.Fatal(err)
	}
	d := stampedDriver(t, rule)
	m := &model{
		rule: kernel, finish: map[int]int64{}, accepting: map[int]bool{}, ready: map[int]bool{},
	}
	pauses := []int{1, 20_000, 100_000, 900_000, 3_000_000}
	if seed%2 == 0 { // long queues
		pauses = []int{1, 1, 1, 1, 1, 1, 1, 1000, 1000, 1000, 60_000}
	}
	return &world{t: t, r: r, d: d, m: m, now: 1 << 40, pauses: pauses}
}

// set chooses the accepting units and corrects some queues, as user space does at a tick.
func (w *world) set() {
	clear(w.m.accepting)
	clear(w.m.ready)
	var accepting, ready []int
	for u := range int(w.d.Rule.Pool) {
		if w.r.IntN(4) > 0 {
			w.m.accepting[u] = true
			accepting = append(accepting, u)
		}
		if w.r.IntN(2) == 0 {
			w.m.ready[u] = true
			ready = append(ready, u)
		}
		if w.r.IntN(4) == 0 {
			w.m.finish[u] = w.now + int64(w.r.IntN(400_000))
			if err := w.d.write(8*u, uint64(w.m.finish[u])); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	err := errors.Join(w.d.write(offsetAccepting, mask(accepting)),
		w.d.write(offsetReady, mask(ready)))
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) step() error {
	w.now += int64(w.r.IntN(w.pauses[w.r.IntN(len(w.pauses))]))
	n, length := w.r.IntN(len(w.flows)), 70+w.r.IntN(1430)
	frame := frameOf(n, length, w.r.IntN(2) == 0)
	verdict, out := w.d.steer(w.t, frame, w.now)
	f := &w.flows[n]
	begins := w.m.packet(f, w.now, length)
	if !f.known {
		if verdict != dropped {
			return fmt.Errorf("no unit accepts: verdict %d", verdict)
		}
		return nil
	}
	if verdict != redirected {
		return fmt.Errorf("verdict %d for a packet of unit %d", verdict, f.unit)
	}
	got := readHeader(w.t, out, frame)
	got.Key = [40]byte{} // see TestBothWaysOfATranslatedFlowMeetAtItsUnit
	want := header{
		Version: 2, Ethertype: [2]byte(frame[12:14]), Unit: uint16(f.unit), Previous: uint16(f.previous),
		Epoch: uint32(f.epoch), Position: uint32(f.position - 1), Clock: uint64(f.clock),
		Replicas: mask(f.targets),
	}
	if begins {
		want.Flags = 1
	}
	if got != want {
		return fmt.Errorf("flow %d at %d: header %+v, the model has %+v", n, w.now, got, want)
	}
	return nil
}

// dropped is TCX_DROP.
const dropped = 2

func TestTheProgramDecidesAsTheModelDoes(t *testing.T) {
	needRoot(t)
	seeds := uint64(40)
	if times, err := strconv.ParseUint(os.Getenv("PANDO_SOAK"), 10, 32); err == nil { // make soak
		seeds *= times
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for i := range 600 {
				if i%50 == 0 {
					w.set()
				}
				if err := w.step(); err != nil {
					t.Fatalf("packet %d: %v", i, err)
				}
			}
			if moved := w.moves(); moved == 0 && w.d.Rule.Pool > 8 {
				t.Error("no flow ever moved: the test shows nothing")
			}
		})
	}
}

func (w *world) moves() (n int) {
	for _, f := range w.flows {
		n += max(0, f.epoch-1)
	}
	return n
}

func TestWhatIsNotIPIsPassedOnAndWhatHasNoPortsIsAFlow(t *testing.T) {
	needRoot(t)
	d := stampedDriver(t, DefaultRule(1e9, 4))
	if err := d.Tick(1, 1, nil); err != nil {
		t.Fatal(err)
	}
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	if verdict, out := d.steer(t, arp, 1); verdict != 0xffffffff || string(out) != string(arp) {
		t.Errorf("ARP: verdict %d, %d of %d bytes", verdict, len(out), len(arp))
	}
	first, later := frameOf(0, 100, false), frameOf(0, 100, false)
	first[20], later[21] = 0x20, 8
	icmp := frameOf(0, 100, false)
	icmp[23] = 1
	short := frameOf(0, 34, false)
	for n, frame := range [][]byte{first, later, short, icmp, frameOf(0, 100, false)} {
		verdict, out := d.steer(t, frame, int64(n))
		h := readHeader(t, out, frame)
		ports := h.Key[32:36]
		if want := []uint64{1, 2, 1, 1, 3}[n]; verdict != redirected || h.Clock != want ||
			(string(ports) == "\x00\x00\x00\x00") != (n == 2 || n == 3) {
			t.Errorf("packet %d: verdict %d, clock %d, ports %x", n, verdict, h.Clock, ports)
		}
	}
	if c, err := d.Counts(); err != nil || c.Others != 1 || c.Packets != 5 || c.Flows != 3 {
		t.Errorf("counted %+v, %v", c, err)
	}
}

func TestAFullFlowTableDropsAndCounts(t *testing.T) {
	needRoot(t)
	spec, err := loadFlowlet()
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Config: Config{Rule: DefaultRule(1e9, 4), FlowsMax: 8}}
	if err := d.load(spec); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Tick(1, 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := d.objects.FlowletDevices.Put(uint32(0), uint32(1)); err != nil {
		t.Fatal(err)
	}
	for n := range 50 {
		d.steer(t, frameOf(n, 100, false), 1)
	}
	c, err := d.Counts()
	if err != nil || c.Full == 0 || c.Flows+c.Full != 50 || c.Packets != c.Flows {
		t.Fatalf("counted %+v, %v", c, err)
	}
	if left, err := d.Sweep(-time.Hour); err != nil || left != 0 {
		t.Fatalf("%d flows are left after all were swept, %v", left, err)
	}
	if verdict, _ := d.steer(t, frameOf(0, 100, false), 1); verdict != redirected {
		t.Errorf("verdict %d after the sweep", verdict)
	}
}
