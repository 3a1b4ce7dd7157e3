package scale

import (
	"fmt"
	"maps"
	"math"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// Sample holds the steering counters at one moment, as totals since each endpoint's birth. It lacks
// the instances of hosts that gave no answer.
type Sample struct {
	At    time.Time
	Total map[pando.InstanceID]float64 // of the spec's metric
	Score map[pando.InstanceID]float64 // for ByScores
	Gauge map[pando.InstanceID]float64 // the number of the application that the spec names
	// Packets and Open are for scale.idle: packets since birth, and flows at the last sweep.
	Packets, Open map[pando.InstanceID]float64
}

// Policy is the built-in scaler for programs that do not use the API of Pando. It grows by the rate
// per instance over Short. It shrinks by the rate over the spec's quiet time, so it grows at once
// and shrinks late.
//
// A rate is measured between two readings of the same instance, over the time between them. A
// missing reading is no load. The instance counts again from its next reading.
type Policy struct {
	// readings are oldest first. The first is about Short older than the last.
	readings map[pando.InstanceID][]reading
	begun    time.Time // of the first sample
	quiet    time.Time // since when one instance fewer would do, or zero
	idle     idle
	pace     pace // of the policies by score and by a number of the application
	trend    trend
}

// reading is the total of one instance at one moment.
type reading struct {
	at    time.Time
	total float64
}

// Short is the time over which growth is judged.
const Short = time.Second

// Wish is the ask of the scaler.
type Wish struct {
	Verb     pando.Verb // "" nothing
	Instance pando.InstanceID
	Reason   string
	Inputs   map[string]float64
}

// Step takes a sample and returns the resulting ask. instances belong to the service. The metric
// keeps the last instance, which leaves when it is idle (scale.idle).
func (p *Policy) Step(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	if !s.FromZero() {
		return p.byMetric(s, instances, now)
	}
	if w := p.idle.step(s, instances, now); w.Verb != "" || Capacity(instances) == 0 {
		return w
	}
	s.Min = max(s.Min, 1)
	return p.byMetric(s, instances, now)
}

func (p *Policy) byMetric(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	switch {
	case s.By == pando.ByNothing:
		return Wish{}
	case s.By == pando.ByScores:
		return p.byScore(s, instances, now)
	case s.By.Custom():
		return p.byGauge(s, instances, now)
	}
	p.take(instances, now)
	if now.At.Sub(p.begun) < Short/2 || s.Target <= 0 {
		return Wish{}
	}
	rate, known := p.rate(instances, now.At)
	n := Capacity(instances)
	load, why := p.expect(s, now.At, rate)
	wanted := int(math.Ceil(min(load/s.Target, float64(pando.EndpointsMax))))
	inputs := map[string]float64{
		"rate": rate, "target": s.Target, "instances": float64(n), "wanted": float64(wanted),
	}
	if why != "" {
		inputs["forecast"], inputs["ahead"] = load, s.AheadSeconds
	}
	if wanted > n && n < s.Max {
		p.quiet = time.Time{}
		p.pace.grew(now.At, n)
		return Wish{Verb: pando.VerbReplicate, Inputs: inputs,
			Reason: fmt.Sprintf("%.0f %s on %d instances, target %g each", rate, s.By, n, s.Target) + why}
	}
	if !known { // an unmeasured instance is not quiet
		p.quiet = time.Time{}
		return Wish{}
	}
	return p.shrink(s, instances, now.At, load, inputs)
}

// take adds a sample to the readings and drops the readings of instances that are gone.
func (p *Policy) take(instances []pando.Instance, now Sample) {
	if p.readings == nil {
		p.readings, p.begun = map[pando.InstanceID][]reading{}, now.At
	}
	there := map[pando.InstanceID]bool{}
	for _, i := range instances {
		there[i.ID] = true
		total, ok := now.Total[i.ID]
		if !ok {
			continue
		}
		all := p.readings[i.ID]
		if len(all) == 0 || total < all[len(all)-1].total {
			all = begin(i, all, now.At)
		}
		all = append(all, reading{now.At, total})
		for len(all) > 2 && now.At.Sub(all[1].at) >= Short {
			all = all[1:]
		}
		p.readings[i.ID] = all
	}
	maps.DeleteFunc(p.readings, func(i pando.InstanceID, _ []reading) bool { return !there[i] })
}

// begin returns the reading before the first one of an endpoint. An endpoint began at zero if it
// was published within Short, or published anew since its last reading. The earlier load of any
// other endpoint is unknown. A time after now is of another clock, and proves nothing.
func begin(i pando.Instance, before []reading, now time.Time) []reading {
	at := now.Add(-Short)
	if len(before) > 0 {
		if last := before[len(before)-1].at; last.Before(at) {
			at = last
		}
		return []reading{{at, 0}}
	}
	within := func(t time.Time) bool { return !t.After(now) && now.Sub(t) <= Short }
	if i.Phase.TakesFlows() && within(i.Since) || within(i.Born) {
		return []reading{{at, 0}}
	}
	return nil
}

// rate returns the rate of all instances per second. known is false when an instance that takes
// flows has no fresh reading. Stale readings add nothing, so they never ask for more instances.
func (p *Policy) rate(instances []pando.Instance, now time.Time) (rate float64, known bool) {
	known = true
	for _, i := range instances {
		all := p.readings[i.ID]
		if len(all) < 2 || now.Sub(all[len(all)-1].at) >= Short {
			known = known && !i.Phase.TakesFlows()
			continue
		}
		first, last := all[0], all[len(all)-1]
		if over := last.at.Sub(first.at); over >= Short/2 {
			rate += (last.total - first.total) / over.Seconds()
		}
	}
	return rate, known
}

func (p *Policy) shrink(
	s pando.Scale, instances []pando.Instance, now time.Time, rate float64, inputs map[string]float64,
) Wish {
	serving := Serving(instances)
	if serving <= s.Min || rate > 0.8*s.Target*float64(serving-1) {
		p.quiet = time.Time{}
		return Wish{}
	}
	if p.quiet.IsZero() {
		p.quiet = now
	}
	if now.Sub(p.quiet) < pando.Seconds(s.QuietSeconds) {
		return Wish{}
	}
	p.quiet, p.pace.shrunk = now, now
	youngest, ok := Youngest(instances)
	if !ok {
		return Wish{}
	}
	return Wish{Verb: pando.VerbHalt, Instance: youngest.ID, Inputs: inputs,
		Reason: fmt.Sprintf("%.0f %s for %s: %d instances do at a target of %g each",
			rate, s.By, span.Seconds(s.QuietSeconds), serving-1, s.Target)}
}
