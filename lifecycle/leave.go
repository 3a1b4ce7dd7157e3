package lifecycle

import (
	"fmt"

	"pando.run/pando"
)

// leave returns a drain of each instance that has a reason to leave and may begin to drain.
func leave(instances []pando.Instance, reason func(*pando.Instance) string) []Move {
	var out []Move
	for n := range instances {
		i := &instances[n]
		if !i.Phase.May(pando.PhaseDraining) {
			continue
		}
		if why := reason(i); why != "" {
			out = append(out, Move{Drain: i.ID, Reason: why})
		}
	}
	return out
}

// Evacuate returns the drains of all instances on leaving hosts.
func Evacuate(instances []pando.Instance, leaving func(pando.HostName) bool) []Move {
	return leave(instances, func(i *pando.Instance) string {
		if !leaving(i.Host) {
			return ""
		}
		return fmt.Sprintf("its host %s leaves", i.Host)
	})
}

// BringHome returns the drains of the instances outside the home. They have to leave their host, for
// the reason that cause returns, or their host was away while the service moved, and is now back.
// They leave once the home serves.
func BringHome(
	instances []pando.Instance, home pando.HostName, cause func(pando.Instance) string,
) []Move {
	return leave(instances, func(i *pando.Instance) string {
		if i.Host == home {
			return ""
		}
		if why := cause(*i); why != "" {
			return fmt.Sprintf("the service moved to %s: %s", home, why)
		}
		return fmt.Sprintf("the service moved to %s while %s was away", home, i.Host)
	})
}

// Abandon returns the drains of the instances on hosts that are away. Others take their place, so
// they leave as soon as their host is back.
func Abandon(instances []pando.Instance, here func(pando.HostName) bool) []Move {
	return leave(instances, func(i *pando.Instance) string {
		if here(i.Host) {
			return ""
		}
		return fmt.Sprintf("its host %s is away, and others take its place", i.Host)
	})
}

// Strangers returns the drains of instances of a revision that neither serves nor rolls. A rollback
// or a change of bounds leaves such instances behind. Instances of a revision alike run as those of
// the serving one, and stay.
func Strangers(instances []pando.Instance, serving int, alike map[int]bool) []Move {
	return leave(instances, func(i *pando.Instance) string {
		if i.Revision == serving || alike[i.Revision] || !i.Capacity() {
			return ""
		}
		return fmt.Sprintf("revision %d is not wanted", i.Revision)
	})
}

// Removal returns the drains of all instances of a removed service.
func Removal(instances []pando.Instance) []Move {
	return leave(instances, func(*pando.Instance) string { return "the service is being removed" })
}

// Lost returns the instances on hosts that are away. A removed service does not wait for them: a
// returning host ends instances without a record.
func Lost(instances []pando.Instance, here func(pando.HostName) bool) []pando.InstanceID {
	var out []pando.InstanceID
	for n := range instances {
		if !here(instances[n].Host) {
			out = append(out, instances[n].ID)
		}
	}
	return out
}
