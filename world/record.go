package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"pando.run/pando"
)

// envelope is how every value is stored.
type envelope struct {
	Layout int             `json:"layout"`
	Value  json.RawMessage `json:"value"`
}

// opening is how an envelope of this build begins, up to its value.
var opening = fmt.Appendf(nil, `{"layout":%d,"value":`, currentLayout)

// Encode makes the stored form of a value: JSON in an envelope that carries the layout version.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	return slices.Concat(opening, b, []byte{'}'}), nil
}

// Decode reads a stored value into v, upgrading it first if an older layout wrote it.
func Decode(r pando.Record, v any) error {
	if b, ok := bytes.CutPrefix(r.Value, opening); ok {
		if b, ok = bytes.CutSuffix(b, []byte{'}'}); ok && json.Unmarshal(b, v) == nil {
			return nil // as Encode made it: not read twice
		}
	}
	var e envelope
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return fmt.Errorf("record %s: %w", r.Key, err)
	}
	if e.Layout > currentLayout {
		return fmt.Errorf("record %s has layout %d, this build reads up to %d: upgrade pando on this host", r.Key, e.Layout, currentLayout)
	}
	for from := e.Layout; from < currentLayout; from++ {
		up, ok := upgrades[from][r.Key.Kind()]
		if !ok {
			continue // the kind did not change between the two
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

// CurrentLayout is what this build writes: all members of a cluster write the same.
func CurrentLayout() int { return currentLayout }
