package flowlet

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// A full table of four flows, in virtual time.
type full struct {
	t   *testing.T
	d   *Driver
	now time.Duration
}

func newFull(t *testing.T) *full {
	needRoot(t)
	spec, err := loadFlowlet()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["time_is_stamp"].Set(uint32(1)); err != nil {
		t.Fatal(err)
	}
	d := &Driver{Config: Config{Rule: DefaultRule(1e9, 4), FlowsMax: 4}}
	if err := d.load(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if err := d.Tick(1, 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := d.objects.FlowletDevices.Put(uint32(0), uint32(1)); err != nil {
		t.Fatal(err)
	}
	return &full{t, d, time.Hour}
}

// passes sends a packet of a conversation and reports whether it found a place.
func (f *full) passes(n int, back bool, flags byte) (header, bool) {
	f.t.Helper()
	frame := frameOf(n, 100, back)
	if n%4 == 2 { // TCP over IPv4
		frame[47] = flags
	}
	verdict, out := f.d.steer(f.t, frame, int64(f.now))
	if verdict != redirected {
		return header{}, false
	}
	return readHeader(f.t, out, frame), true
}

func (f *full) replaced() uint64 {
	f.t.Helper()
	c, err := f.d.Counts()
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Replaced
}

const fin, syn, rst, ack = 1, 2, 4, 16

// A flow without an answer gives its place to a new flow; an answered one and a young one stay.
func TestATrickleOfNewFlowsClosesNoGroup(t *testing.T) {
	f := newFull(t)
	for n := range 4 {
		f.passes(n, false, 0)
	}
	answered, _ := f.passes(0, true, 0)
	f.now += time.Second / 2
	if _, ok := f.passes(10, false, 0); ok {
		t.Error("a flow was replaced while its answer may be on its way")
	}
	f.now += time.Second
	for n := 10; n < 13; n++ {
		if _, ok := f.passes(n, false, 0); !ok {
			t.Errorf("new flow %d found no place", n)
		}
	}
	if _, ok := f.passes(13, false, 0); ok || f.replaced() != 3 {
		t.Errorf("an answered flow or a young one was replaced: %d are", f.replaced())
	}
	f.now += time.Second
	for n := 13; n < 2000; n++ {
		f.now += 1100 * time.Millisecond / 3
		if _, ok := f.passes(n%100+4, false, 0); !ok {
			t.Fatalf("new flow %d found no place", n)
		}
	}
	h, ok := f.passes(0, false, 0)
	if !ok || h.Clock != answered.Clock+1 || h.Epoch != answered.Epoch {
		t.Errorf("the answered flow continues as %+v after %+v", h, answered)
	}
}

// A connection that is over gives its place to a new flow, and one of the same ends that begins
// anew does not.
func TestAClosedConnectionGivesItsPlaceBack(t *testing.T) {
	const closed, reset, again, open = 2, 6, 10, 14 // conversations of TCP over IPv4
	f := newFull(t)
	for _, n := range []int{closed, reset, again, open} {
		f.passes(n, false, syn)
		f.passes(n, true, syn|ack)
	}
	for _, n := range []int{closed, again} {
		f.passes(n, false, fin|ack)
		f.passes(n, true, fin|ack)
	}
	f.passes(open, false, fin|ack)
	f.passes(reset, true, rst)
	f.passes(again, false, syn)
	f.now += 2 * time.Second
	for n, want := range []bool{true, true, false} {
		if _, ok := f.passes(20+n, false, 0); ok != want {
			t.Errorf("new flow %d: found a place: %v", n, ok)
		}
	}
	for _, n := range []int{again, open} {
		if h, _ := f.passes(n, false, ack); h.Clock < 4 {
			t.Errorf("conversation %d was replaced: %+v", n, h)
		}
	}
}

// A flow after a replaced one with the same key has a higher epoch and clock.
func TestAReplacedFlowThatReturnsContinuesNoEpoch(t *testing.T) {
	f := newFull(t)
	var last header
	for range 50 {
		last, _ = f.passes(0, false, 0)
	}
	f.now += 2 * time.Second
	for n := 1; n < 9; n++ {
		f.passes(n, false, 0)
		f.now += 2 * time.Second
	}
	h, ok := f.passes(0, false, 0)
	if !ok || h.Epoch <= last.Epoch || h.Clock <= last.Clock || h.Position != 0 ||
		h.Previous != 0xffff {
		t.Errorf("after %+v it returned as %+v", last, h)
	}
}

// learn lets a unit send a packet of a flow, which makes the packet's ends an alias.
func (f *full) learn(h header, sent []byte) {
	f.t.Helper()
	h.Flags, h.Ethertype = 4, [2]byte(sent[12:14])
	frame, err := binary.Append(bytes.Clone(sent[:14]), binary.LittleEndian, h)
	if err != nil {
		f.t.Fatal(err)
	}
	frame = append(frame, sent[14:]...)
	if _, err := f.d.objects.FlowletReturn.Run(&ebpf.RunOptions{Data: frame}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *full) aliases() (n int) {
	var key flowletFlowletKey
	for entries := f.d.objects.FlowletAliases.Iterate(); entries.Next(&key, &key); {
		n++
	}
	return n
}

// A packet of an alias answers its flow. An alias goes with its flow.
func TestAnAliasAnswersItsFlowAndGoesWithIt(t *testing.T) {
	f := newFull(t)
	for n := range 4 {
		h, _ := f.passes(n, false, 0)
		f.learn(h, frameOf(40+n, 100, false))
	}
	if h, ok := f.passes(40, true, 0); f.aliases() != 4 || !ok || h.Clock != 2 {
		t.Fatalf("%d aliases were learnt, and an answer met %+v", f.aliases(), h)
	}
	f.now += 2 * time.Second
	for n := 4; n < 7; n++ {
		f.passes(n, false, 0)
	}
	if h, ok := f.passes(40, true, 0); f.aliases() != 1 || !ok || h.Clock != 3 {
		t.Errorf("%d aliases are left, and an answer met %+v", f.aliases(), h)
	}
}
