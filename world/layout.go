//go:build !layoutnext

package world

import (
	"encoding/json"

	"pando.run/pando"
)

// currentLayout is the layout that this build writes. The build tag layoutnext makes a build with
// layout + 1. It tests the upgrade before a real one exists (test/e2e).
const currentLayout = pando.Layout

// upgrades[n][kind] turns a value of layout n into one of layout n+1.
var upgrades = map[int]map[pando.Kind]func(json.RawMessage) (json.RawMessage, error){}

// downgrades[n][kind] turns a value of layout n+1 into one of layout n. A build that can write the
// previous layout joins a cluster of it, and takes part in the switch. It has an entry for n even
// if no kind changed.
var downgrades = map[int]map[pando.Kind]func(json.RawMessage) (json.RawMessage, error){}
