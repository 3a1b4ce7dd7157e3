package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"pando.run/pando"
)

// envelope is the stored form of every value.
type envelope struct {
	Layout int             `json:"layout"`
	Value  json.RawMessage `json:"value"`
}

// opening is the start of an envelope of this build, up to its value.
var opening = fmt.Appendf(nil, `{"layout":%d,"value":`, currentLayout)

// Encode returns the stored form of a value: JSON in an envelope with the layout version.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	return slices.Concat(opening, b, []byte{'}'}), nil
}

// Decode reads a stored value into v. It first upgrades a value of an older layout.
func Decode(r pando.Record, v any) error {
	if b, ok := bytes.CutPrefix(r.Value, opening); ok {
		if b, ok = bytes.CutSuffix(b, []byte{'}'}); ok && json.Unmarshal(b, v) == nil {
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

// CurrentLayout returns the layout that this build writes. All members of a cluster write the same.
func CurrentLayout() int { return currentLayout }
