package scale

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pando.run/pando"
)

// upAfter is how long the best score stays above Up before an instance is added. Scores are
// smooth already, so this only outlasts one odd reading of 200 ms. Growth is quick and shrinking is
// slow: an instance too many costs little, one too few costs requests.
//
// Within growFor after an instance was added, one reading is enough to add another. The load has
// proved to last, and the new instance must be measured and above Up too.
const (
	upAfter = 150 * time.Millisecond
	growFor = 2 * time.Second
)

// A service that shrinks and grows again within flapWindow has flapped. After flapsMax flaps within
// flapMemory it shrinks flapPenalty times later, until they are forgotten.
const (
	flapWindow  = time.Minute
	flapMemory  = 10 * time.Minute
	flapsMax    = 3
	flapPenalty = 5
)

// pace limits how a policy changes direction.
type pace struct {
	high, low time.Time // since when the load is above, or below; zero: it is not
	grown     time.Time // the last ask to replicate
	from      int       // the number of instances before it
	shrunk    time.Time // the last ask to halt
	flaps     []time.Time
}

// grew notes an ask to replicate n instances.
func (p *pace) grew(now time.Time, n int) {
	if !p.shrunk.IsZero() && now.Sub(p.shrunk) < flapWindow {
		p.flaps = append(p.flaps[max(0, len(p.flaps)-flapsMax):], now)
	}
	p.high, p.low, p.shrunk = time.Time{}, time.Time{}, time.Time{}
	p.grown, p.from = now, n
}

// grows reports whether an instance was added within growFor to n instances. A refused ask added
// none, so the next one waits.
func (p *pace) grows(now time.Time, n int) bool {
	return !p.grown.IsZero() && now.Sub(p.grown) < growFor && n > p.from
}

// flapped returns the flaps that still count.
func (p *pace) flapped(now time.Time) int {
	p.flaps = slices.DeleteFunc(p.flaps, func(at time.Time) bool { return now.Sub(at) > flapMemory })
	return len(p.flaps)
}

// quiet returns how long the load must be low before an instance leaves.
func (p *pace) quiet(s pando.Scale, now time.Time) time.Duration {
	if p.flapped(now) >= flapsMax {
		return flapPenalty * pando.Seconds(s.QuietSeconds)
	}
	return pando.Seconds(s.QuietSeconds)
}

// lasted reports whether a state holds since at least d. It begins the state if it is new.
func lasted(since *time.Time, now time.Time, d time.Duration) bool {
	if since.IsZero() {
		*since = now
	}
	return now.Sub(*since) >= d
}

// ScaleUp is HAVEN Fig. 6: whether a member is added. best is the score of the member that the
// balancer would choose, so the scores of all others are higher. The figure (≥) counts over the
// text (>). Where the new member runs is decided by placement.
func ScaleUp(best, up float64, pending, inactive int) bool {
	return best >= up && pending == 0 && inactive > 0
}

// ScaleDown is HAVEN Fig. 7: whether a member leaves. Most active members must score below down.
func ScaleDown(scores []float64, down float64) bool {
	c := 0
	for _, s := range scores {
		if s < down {
			c++
		}
	}
	return 2*c > len(scores)
}

// byScore is the policy of HAVEN §III-D, with delays: up quickly, down slowly.
func (p *Policy) byScore(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	var scores []float64
	best, unknown := math.Inf(1), 0
	for _, i := range instances {
		if !i.Phase.TakesFlows() {
			continue
		}
		v, ok := now.Score[i.ID]
		if !ok {
			unknown++
			continue
		}
		scores, best = append(scores, v), min(best, v)
	}
	if len(scores) == 0 {
		p.pace.high, p.pace.low = time.Time{}, time.Time{}
		return Wish{}
	}
	n, serving := Capacity(instances), Serving(instances)
	inputs := map[string]float64{"score": best, "up": s.Up, "down": s.Down, "instances": float64(n)}
	if !ScaleUp(best, s.Up, n-serving, s.Max-n) {
		p.pace.high = time.Time{}
	} else if lasted(&p.pace.high, now.At, upAfter) || unknown == 0 && p.pace.grows(now.At, n) {
		p.pace.grew(now.At, n)
		return Wish{Verb: pando.VerbReplicate, Inputs: inputs, Reason: fmt.Sprintf(
			"the best of %d scores is %.2f, and %g adds an instance", len(scores), best, s.Up)}
	}
	// An unmeasured instance is not idle: it counts as a score above down.
	for range unknown {
		scores = append(scores, math.Inf(1))
	}
	if serving <= s.Min || n > serving || !ScaleDown(scores, s.Down) {
		p.pace.low = time.Time{}
		return Wish{}
	}
	quiet := p.pace.quiet(s, now.At)
	if !lasted(&p.pace.low, now.At, quiet) {
		return Wish{}
	}
	p.pace.low, p.pace.shrunk = now.At, now.At
	inputs["flaps"] = float64(len(p.pace.flaps))
	return Wish{Verb: pando.VerbHalt, Instance: eldest(instances), Inputs: inputs, Reason: fmt.Sprintf(
		"most of %d scores are below %g for %s: the eldest leaves", serving, s.Down, quiet)}
}

// eldest returns the instance with the longest uptime among those that take flows (Fig. 7). The
// first instance of a service leaves last, here as everywhere.
func eldest(instances []pando.Instance) pando.InstanceID {
	var out *pando.Instance
	for n := range instances {
		i := &instances[n]
		if !i.Phase.TakesFlows() {
			continue
		}
		if out == nil || out.Role == pando.RoleFirst && i.Role != pando.RoleFirst ||
			i.Born.Before(out.Born) && (i.Role != pando.RoleFirst || out.Role == pando.RoleFirst) {
			out = i
		}
	}
	return out.ID
}

// byGauge scales by a number of the application: its sum over all instances, against a target for
// each. An instance without the number is not idle.
func (p *Policy) byGauge(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	sum, known, read := 0.0, true, 0
	for _, i := range instances {
		v, ok := now.Gauge[i.ID]
		switch {
		case ok:
			sum += max(v, 0)
			read++
		case i.Phase.TakesFlows():
			known = false
		}
	}
	if read == 0 || !(s.Target > 0) {
		p.pace.high, p.pace.low = time.Time{}, time.Time{}
		return Wish{}
	}
	n, serving := Capacity(instances), Serving(instances)
	load, why := p.expect(s, now.At, sum)
	wanted := int(math.Ceil(min(load/s.Target, float64(pando.EndpointsMax))))
	inputs := map[string]float64{"sum": sum, "target": s.Target, "instances": float64(n),
		"wanted": float64(wanted)}
	if why != "" {
		inputs["forecast"], inputs["ahead"] = load, s.AheadSeconds
	}
	if wanted <= n || n >= s.Max {
		p.pace.high = time.Time{}
	} else if lasted(&p.pace.high, now.At, upAfter) {
		p.pace.grew(now.At, n)
		return Wish{Verb: pando.VerbReplicate, Inputs: inputs, Reason: fmt.Sprintf(
			"%s is %.4g on %d instances, target %g each", s.By, sum, n, s.Target) + why}
	}
	if !known || serving <= s.Min || n > serving || load > 0.8*s.Target*float64(serving-1) {
		p.pace.low = time.Time{}
		return Wish{}
	}
	quiet := p.pace.quiet(s, now.At)
	if !lasted(&p.pace.low, now.At, quiet) {
		return Wish{}
	}
	youngest, ok := Youngest(instances)
	if !ok {
		return Wish{}
	}
	p.pace.low, p.pace.shrunk = now.At, now.At
	return Wish{Verb: pando.VerbHalt, Instance: youngest.ID, Inputs: inputs, Reason: fmt.Sprintf(
		"%s is %.4g for %s: %d instances do at a target of %g each", s.By, sum, quiet, serving-1,
		s.Target)}
}
