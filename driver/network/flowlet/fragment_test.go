package flowlet

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

// fragmentOf returns a fragment of datagram id, in conversation n. It begins at offset, a multiple
// of 8 bytes.
func fragmentOf(n int, id byte, offset uint16, more bool) []byte {
	frame := frameOf(n, 200, false)
	var last uint16
	if more {
		last = 1
	}
	if n%2 == 0 {
		frame[19] = id
		binary.BigEndian.PutUint16(frame[20:], offset/8|last<<13)
		if offset > 0 {
			copy(frame[34:], "data")
		}
		return frame
	}
	header := []byte{frame[20], 0, 0, 0, 0, 0, 0, id}
	binary.BigEndian.PutUint16(header[2:], offset|last)
	frame[20] = 44
	if offset > 0 {
		copy(frame[54:], "data")
	}
	return slices.Insert(frame, 54, header...)
}

func TestFragmentsOfADatagramAreOfOneFlowAndBeginNoFlowlet(t *testing.T) {
	needRoot(t)
	for n := range 2 { // IPv4 and IPv6
		rule := DefaultRule(1e9, 4)
		rule.SizeBytes = 300 // every second packet begins a flowlet
		d := stampedDriver(t, rule)
		if err := d.Tick(1, 1, nil); err != nil {
			t.Fatal(err)
		}
		now := int64(1)
		steer := func(frame []byte) header {
			t.Helper()
			now++
			verdict, out := d.steer(t, frame, now)
			if verdict != redirected {
				t.Fatalf("verdict %d", verdict)
			}
			return readHeader(t, out, frame)
		}
		whole := steer(frameOf(n, 200, false))
		for part := range uint16(4) {
			h := steer(fragmentOf(n, 1, part*80, part < 3))
			if h.Key != whole.Key || h.Clock != uint64(part)+2 || (h.Flags == 1) != (part == 0) {
				t.Errorf("fragment %d in order: header %+v, the whole packet had %+v", part, h, whole)
			}
		}
		// Out of order, the flow has no ports. All fragments of the datagram belong to that flow.
		late := steer(fragmentOf(n, 2, 80, false))
		first := steer(fragmentOf(n, 2, 0, true))
		if first.Key != late.Key || first.Clock != 2 || late.Key == whole.Key {
			t.Errorf("the last fragment first: headers %+v and %+v", late, first)
		}
		// Another datagram reuses the number.
		other := n + 4
		if again := steer(fragmentOf(other, 1, 0, true)); again.Key == whole.Key || again.Clock != 1 {
			t.Errorf("the first fragment of another datagram with the number: header %+v", again)
		} else if behind := steer(fragmentOf(other, 1, 80, false)); behind.Key != again.Key {
			t.Errorf("behind it: header %+v", behind)
		}
		now += int64(61 * time.Second)
		if h := steer(fragmentOf(other, 1, 80, false)); h.Key != late.Key {
			t.Errorf("a number that was forgotten: header %+v", h)
		}
		if h := steer(fragmentOf(n, 3, 0, false)); h.Key != whole.Key {
			t.Errorf("a datagram that is its only fragment: header %+v", h)
		}
	}
}

func TestTagsAndSessionsAreLookedThrough(t *testing.T) {
	needRoot(t)
	d := stampedDriver(t, DefaultRule(1e9, 4))
	if err := d.Tick(1, 1, nil); err != nil {
		t.Fatal(err)
	}
	session := func(protocol byte) []byte {
		return []byte{0x88, 0x64, 0x11, 0, 0, 9, 0, 200, 0, protocol}
	}
	customer, provider := []byte{0x81, 0, 0, 7}, []byte{0x88, 0xa8, 0, 8}
	for n := range 2 {
		plain := frameOf(n, 200, false)
		_, out := d.steer(t, plain, 1)
		key := readHeader(t, out, plain).Key
		protocol := []byte{0x21, 0x57}[n]
		for at, link := range [][]byte{
			slices.Concat(customer, plain[12:14]), slices.Concat(provider, customer, plain[12:14]),
			session(protocol),
			slices.Concat(customer, session(protocol)), slices.Concat(provider, customer, session(protocol)),
		} {
			frame := slices.Concat(plain[:12], link, plain[14:])
			verdict, out := d.steer(t, frame, 2)
			if h := readHeader(t, out, frame); verdict != redirected || h.Key != key ||
				h.Clock != uint64(at)+2 || string(h.Ethertype[:]) != string(link[:2]) {
				t.Errorf("link header %x: verdict %d, header %+v", link, verdict, h)
			}
		}
		for _, link := range [][]byte{
			session(0xc0), slices.Concat(customer, customer, customer, plain[12:14]), {0x88, 0x63},
		} {
			frame := slices.Concat(plain[:12], link, plain[14:])
			if verdict, out := d.steer(t, frame, 3); verdict != 0xffffffff || string(out) != string(frame) {
				t.Errorf("link header %x: verdict %d", link, verdict)
			}
		}
	}
}
