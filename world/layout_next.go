//go:build layoutnext

package world

import (
	"encoding/json"

	"pando.run/pando"
)

const currentLayout = pando.Layout + 1

// The trial layout renames nothing that matters. It proves that every record is read through its
// upgrade.
var upgrades = map[int]map[pando.Kind]func(json.RawMessage) (json.RawMessage, error){
	pando.Layout: {
		pando.KindService:   mark,
		pando.KindRevision:  mark,
		pando.KindInstance:  mark,
		pando.KindIntent:    mark,
		pando.KindDecision:  mark,
		pando.KindHead:      mark,
		pando.KindEndpoints: mark,
		pando.KindKeeper:    mark,
		pando.KindHost:      mark,
	},
}

var downgrades = map[int]map[pando.Kind]func(json.RawMessage) (json.RawMessage, error){
	pando.Layout: {
		pando.KindService:  unmark,
		pando.KindRevision: unmark,
		pando.KindInstance: unmark,
		pando.KindIntent:   unmark,
		pando.KindDecision: unmark,
		pando.KindHead:     unmark,
		pando.KindKeeper:   unmark,
		pando.KindHost:     unmark,
	},
}

func unmark(next json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(next, &fields); err != nil {
		return nil, err
	}
	delete(fields, "upgraded_from")
	return json.Marshal(fields)
}

func mark(old json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(old, &fields); err != nil {
		return nil, err
	}
	fields["upgraded_from"] = json.RawMessage("1")
	return json.Marshal(fields)
}
