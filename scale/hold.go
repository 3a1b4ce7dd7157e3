package scale

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// Range is the least and the most instances that a service has now, with the reason.
type Range struct {
	Least, Most int
	Why         string
}

// Bounds returns the range of a service. A pin replaces min and max while it holds. It does not
// exceed the one instance of a single writer.
func Bounds(s pando.Spec, pin *pando.Pin, now time.Time) Range {
	r := Range{s.Scale.Min, s.Scale.Max, fmt.Sprintf("min %d, max %d", s.Scale.Min, s.Scale.Max)}
	if pin.Holds(now) {
		r = Range{pin.Instances, pin.Instances,
			fmt.Sprintf("%s pinned %d%s", pin.By, pin.Instances, until(pin.Until))}
	}
	if s.Single() && r.Most > 1 {
		return Range{min(r.Least, 1), 1, "scale.max 1, rollout.order stop-first"}
	}
	return r
}

// Ended returns the range of a service after n instances ran to their end for good. They are not
// replaced.
func (r Range) Ended(n int) Range {
	r.Least = max(0, r.Least-n)
	return r
}

// Move is one step towards the wanted number of instances.
type Move struct {
	Drain  pando.InstanceID // take this instance out; "" starts one
	Warm   bool             // the new instance joins the reserve
	Reason string
}

// Hold returns the moves that bring a service into its range. It fills up to the least, and it
// drains the youngest instances beyond the most. With stopFirst, every instance that still ends
// counts against the most.
func Hold(r Range, instances []pando.Instance, stopFirst bool) []Move {
	n := CountOf(instances)
	if n.Capacity > r.Most {
		return Shed(instances, n.Capacity-r.Most, r.Why)
	}
	room := r.Most
	if stopFirst {
		room -= n.Present
	}
	var out []Move
	for have := n.Capacity; have < r.Least && room > 0; have, room = have+1, room-1 {
		out = append(out, Move{Reason: fmt.Sprintf("%d of %d instances (%s)", have, r.Least, r.Why)})
	}
	return out
}

// Shed returns the moves that take n instances out of rotation, the youngest first.
func Shed(instances []pando.Instance, n int, why string) []Move {
	if n <= 0 {
		return nil
	}
	reason := fmt.Sprintf("more than wanted (%s)", why)
	var out []Move
	for _, i := range leaveOrder(instances)[:min(n, Serving(instances))] {
		out = append(out, Move{Drain: instances[i].ID, Reason: reason})
	}
	return out
}

// AfterPin returns the instances that stay when a pin ends, and the reason. Instances that the pin
// added leave. A service that scales by a metric drains them itself: ok is false.
func AfterPin(p pando.Pin, s pando.Scale) (stay int, why string, ok bool) {
	return max(p.Before, s.Min), fmt.Sprintf("%d before the pin", p.Before), s.By == pando.ByNothing
}

// Youngest returns the instance that leaves first when another party chooses. It is the last born
// of those that take flows, and a replica rather than the first instance.
func Youngest(instances []pando.Instance) (pando.Instance, bool) {
	order := leaveOrder(instances)
	if len(order) == 0 {
		return pando.Instance{}, false
	}
	return instances[order[0]], true
}

// leaveOrder returns the positions of the instances that take flows, in the order in which they
// leave.
func leaveOrder(instances []pando.Instance) []int {
	var in []int
	for n := range instances {
		if instances[n].Phase.TakesFlows() {
			in = append(in, n)
		}
	}
	slices.SortFunc(in, func(x, y int) int {
		a, b := &instances[x], &instances[y]
		if first := a.Role == pando.RoleFirst; first != (b.Role == pando.RoleFirst) {
			if first {
				return 1
			}
			return -1
		}
		return cmp.Or(b.Born.Compare(a.Born), cmp.Compare(x, y))
	})
	return in
}
