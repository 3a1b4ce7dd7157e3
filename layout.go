//go:build !layoutnext

package pando

import "encoding/json"

// currentLayout is what this build writes. The build tag layoutnext makes a build of layout + 1, with which the upgrade
// is tested before there is a real one (test/e2e).
const currentLayout = Layout

// upgrades[n][kind] turns a value of layout n into one of layout n+1.
var upgrades = map[int]map[Kind]func(json.RawMessage) (json.RawMessage, error){}
