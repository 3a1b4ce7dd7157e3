package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"pando.run/pando"
)

// envelope is the stored form of every value.
type envelope struct {
	Layout int             `json:"layout"`
	Value  json.RawMessage `json:"value"`
}

// openings are the starts of the envelopes that this build can write, by layout, up to the value.
var openings = func() (out [currentLayout + 1][]byte) {
	for n := range out {
		out[n] = fmt.Appendf(nil, `{"layout":%d,"value":`, n)
	}
	return out
}()

// opening is the start of an envelope of this build.
var opening = openings[currentLayout]

// agreed is the layout that the cluster's record of itself names, or 0.
var agreed atomic.Int32

// Agree sets the layout that this process writes from now on: that of the cluster's record of
// itself. It never goes back, because other hosts write the newer one.
func Agree(layout int) {
	for {
		was := agreed.Load()
		if int(was) >= layout || agreed.CompareAndSwap(was, int32(layout)) {
			return
		}
	}
}

// WrittenLayout returns the layout that this process writes. Until it has seen the cluster's record
// of itself, that is the oldest one that it can write, which every build reads that it may meet.
func WrittenLayout() int {
	return min(currentLayout, max(int(agreed.Load()), oldestLayout()))
}

func oldestLayout() int {
	n := currentLayout
	for n > 1 && downgrades[n-1] != nil {
		n--
	}
	return n
}

// Encode returns the stored form of a value: JSON in an envelope with the layout version. The
// cluster agrees on the layout: a build reads a newer layout before any build writes it.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	to := WrittenLayout()
	if s, ok := v.(pando.Stored); ok {
		for n := currentLayout - 1; n >= to; n-- {
			down, ok := downgrades[n][s.Key().Kind()]
			if !ok {
				continue // the kind did not change between the two layouts
			}
			if b, err = down(b); err != nil {
				return nil, fmt.Errorf("encode %s for layout %d: %w", s.Key(), n, err)
			}
		}
	}
	return slices.Concat(openings[to], b, []byte{'}'}), nil
}

// writtenReader is a value that reads its own JSON faster than encoding/json, if the JSON is in the
// very form of json.Marshal.
type writtenReader interface{ ReadWritten([]byte) bool }

// Decode reads a stored value into v. It first upgrades a value of an older layout.
func Decode(r pando.Record, v any) error {
	if b, ok := bytes.CutPrefix(r.Value, opening); ok {
		b, ok = bytes.CutSuffix(b, []byte{'}'})
		if w, fast := v.(writtenReader); ok && fast && w.ReadWritten(b) {
			return nil
		}
		if ok && json.Unmarshal(b, v) == nil {
			return nil // as Encode made it: read once
		}
	}
	var e envelope
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return fmt.Errorf("record %s: %w", r.Key, err)
	}
	if e.Layout > currentLayout {
		return fmt.Errorf("record %s has layout %d, this build reads up "+
			"to %d: upgrade pando on this host", r.Key, e.Layout, currentLayout)
	}
	for from := e.Layout; from < currentLayout; from++ {
		up, ok := upgrades[from][r.Key.Kind()]
		if !ok {
			continue // the kind did not change between the two layouts
		}
		b, err := up(e.Value)
		if err != nil {
			return fmt.Errorf("record %s: upgrade from layout %d: %w", r.Key, from, err)
		}
		e.Value = b
	}
	if err := json.Unmarshal(e.Value, v); err != nil {
		return fmt.Errorf("record %s: %w", r.Key, err)
	}
	return nil
}

// CurrentLayout returns the newest layout that this build reads and writes.
func CurrentLayout() int { return currentLayout }
