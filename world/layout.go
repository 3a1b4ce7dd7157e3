//go:build !layoutnext

package world

import (
	"encoding/json"

	"pando.run/pando"
)

// currentLayout is what this build writes. The build tag layoutnext makes a build of layout + 1, with which the upgrade
// is tested before there is a real one (test/e2e).
const currentLayout = pando.Layout

// upgrades[n][kind] turns a value of layout n into one of layout n+1.
var upgrades = map[int]map[pando.Kind]func(json.RawMessage) (json.RawMessage, error){}
