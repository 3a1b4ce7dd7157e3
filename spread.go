package pando

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of Kept: a service with fewer connections, or with instances that are younger, says little.
const (
	keptConnsEach = 2               // connections for each instance
	keptAge       = 5 * time.Second // the least age of an instance
	keptShare     = 4               // the newest have less than a quarter of their share
)

// Kept returns that the newest instances of a service have few of its connections, or "". Clients
// that keep their connections stay on the instances to which they connected, so a copy gains nothing
// by itself. all are the instances of one service, which scales by a metric.
func Kept(all []InstanceUsage, by Metric, now time.Time) string {
	all = slices.DeleteFunc(slices.Clone(all), func(u InstanceUsage) bool {
		return u.Missing != "" || u.Phase != PhaseInRotation
	})
	slices.SortStableFunc(all, func(a, b InstanceUsage) int { return b.Born.Compare(a.Born) })
	total := 0
	for _, u := range all {
		total += u.Connections
	}
	if len(all) < 2 || total < keptConnsEach*len(all) {
		return ""
	}
	newest, has, most := 0, 0, 0
	for n, u := range all[:len(all)-1] {
		if now.Sub(u.Born) < keptAge {
			return ""
		}
		has += u.Connections
		if has*len(all)*keptShare >= total*(n+1) {
			break
		}
		newest, most = n+1, has
	}
	if newest == 0 {
		return ""
	}
	text := fmt.Sprintf("the %d newest of %d instances have %d of %d connections: its clients keep "+
		"theirs, and a copy takes only new ones; the program can let a share go (Spread of the SDK)",
		newest, len(all), most, total)
	if by == ByConnections {
		text += "; `scale: {by: connections/s}` counts only new connections, and does not see the load of " +
			"kept ones"
	}
	return text
}
