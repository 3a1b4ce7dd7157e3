//go:build layoutnext

package pando

import "encoding/json"

const currentLayout = Layout + 1

// The trial layout renames nothing that matters: it proves that every record is read through its upgrade.
var upgrades = map[int]map[Kind]func(json.RawMessage) (json.RawMessage, error){
	Layout: {
		KindService:  mark,
		KindRevision: mark,
		KindInstance: mark,
		KindIntent:   mark,
		KindDecision: mark,
		KindHead:     mark,
		KindHost:     mark,
	},
}

func mark(old json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(old, &fields); err != nil {
		return nil, err
	}
	fields["upgraded_from"] = json.RawMessage("1")
	return json.Marshal(fields)
}
