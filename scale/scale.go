// Package scale decides how many instances a service has. It grants or refuses asks to replicate
// and to halt, holds a service within its bounds, fills its reserve, and contains the built-in
// scaler.
//
// It never starts, places or stops anything, and it reads no clock. Every function maps its
// arguments to an answer with its reason.
package scale

import (
	"fmt"
	"time"

	"pando.run/pando"
)

// Window is how long after a granted ask the asks of other instances count as the same ask. The
// first ask acts at once (leading edge).
const Window = 20 * time.Millisecond

// Budget is the limit against which an ask is checked.
type Budget struct {
	Scale     pando.Scale
	Pin       *pando.Pin
	Removing  bool
	StopFirst bool    // an instance that still ends counts against max
	Count     Count   // of the service's instances
	Grants    []Grant // of the last second, oldest first
	Beyond    string  // the quota of the tenant that one more instance would exceed, or ""
}

// Verdict is the answer to an ask.
type Verdict struct {
	State  pando.IntentState // granted, refused or coalesced
	Reason string
	Inputs map[string]float64
	With   *Grant // the grant that a coalesced ask shares
}

// Replicate answers an ask for one more instance.
func Replicate(b Budget, by pando.Asker, now time.Time) Verdict {
	n := b.Count.Capacity
	inputs := map[string]float64{"instances": float64(n), "max": float64(b.Scale.Max)}
	refuse := func(format string, args ...any) Verdict {
		return Verdict{State: pando.IntentRefused, Reason: fmt.Sprintf(format, args...), Inputs: inputs}
	}
	switch {
	case b.Removing:
		return refuse("the service is being removed")
	case b.Pin.Holds(now):
		inputs["pin"] = float64(b.Pin.Instances)
		return refuse("%s pinned %d instances%s", b.Pin.By, b.Pin.Instances, until(b.Pin.Until))
	}
	if g, ok := sameMoment(b.Grants, by, now); ok {
		return Verdict{
			State:  pando.IntentCoalesced,
			Reason: fmt.Sprintf("%s asked %s earlier: %s is coming", g.By, ms(now.Sub(g.At)), g.Instance),
			Inputs: inputs, With: &g,
		}
	}
	if by.Kind == pando.AskerTraffic {
		switch {
		case !b.Scale.FromZero():
			return refuse("traffic starts no instance of this service: it has no scale.idle")
		case n > 0:
			return refuse("%d instances serve or start already", n)
		}
	}
	if n >= b.Scale.Max {
		return refuse("%d of max %d instances", n, b.Scale.Max)
	}
	if rate := b.Scale.RatePerSecond; rate > 0 {
		recent := grantedSince(b.Grants, now.Add(-time.Second))
		inputs["granted_last_second"], inputs["rate_per_second"] = float64(recent), rate
		if float64(recent)+1 > max(rate, 1) {
			return refuse("%d granted in the last second, the budget is %g per second", recent, rate)
		}
	}
	if b.Beyond != "" {
		return refuse("%s", b.Beyond)
	}
	if b.StopFirst && b.Count.Present >= b.Scale.Max {
		return refuse("of max %d instances one still ends (rollout.order stop-first)", b.Scale.Max)
	}
	return Verdict{
		State: pando.IntentGranted, Inputs: inputs,
		Reason: fmt.Sprintf("%d of max %d instances", n+1, b.Scale.Max),
	}
}

// Halt answers an ask that one instance take no new flows.
func Halt(b Budget, i pando.Instance, by pando.Asker, now time.Time) Verdict {
	floor, name := b.Scale.Min, "min"
	if b.Pin.Holds(now) {
		floor, name = b.Pin.Instances, "the pin"
	}
	left := b.Count.InRotation
	if i.Phase == pando.PhaseInRotation {
		left--
	}
	inputs := map[string]float64{"left": float64(left), "floor": float64(floor)}
	answer := func(state pando.IntentState, format string, args ...any) Verdict {
		return Verdict{State: state, Reason: fmt.Sprintf(format, args...), Inputs: inputs}
	}
	switch {
	case i.Phase.Leaving() || i.Phase == pando.PhaseFailed:
		return answer(pando.IntentRefused, "the instance is %s already", i.Phase)
	case b.Removing:
		return answer(pando.IntentGranted, "the service is being removed")
	case left < floor:
		return answer(pando.IntentRefused, "%d would be left in rotation, %s is %d", left, name, floor)
	}
	return answer(pando.IntentGranted, "%d stay in rotation, %s is %d", left, name, floor)
}

func until(t time.Time) string {
	if t.IsZero() {
		return " until further notice"
	}
	return " until " + t.UTC().Format("15:04:05Z")
}

func ms(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
