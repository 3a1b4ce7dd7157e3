package scale

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pando.run/pando"
)

// Sample is what the steering counters of all hosts say at one moment: totals since each endpoint's birth.
type Sample struct {
	At    time.Time
	Total map[pando.InstanceID]float64 // of the spec's metric
}

// Policy is the built-in scaler: it speaks for a program that knows nothing of Pando. It looks at the rate per instance
// over Short to grow and over the spec's quiet time to shrink, so that it grows at once and leaves late.
type Policy struct {
	samples []Sample
	quiet   time.Time // since when one instance fewer would do; zero: not now
}

// Short is the time over which growth is judged.
const Short = time.Second

// Wish is what the scaler asks for.
type Wish struct {
	Verb     pando.Verb // "" nothing
	Instance pando.InstanceID
	Reason   string
	Inputs   map[string]float64
}

// Step takes a sample and says what to ask for. Instances are those of the service.
func (p *Policy) Step(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	p.samples = append(p.samples, now)
	for len(p.samples) > 2 && now.At.Sub(p.samples[1].At) >= Short {
		p.samples = p.samples[1:]
	}
	first := p.samples[0]
	over := now.At.Sub(first.At).Seconds()
	if over < Short.Seconds()/2 || s.Target <= 0 {
		return Wish{}
	}
	rate := 0.0
	for i, total := range now.Total {
		rate += max(0, total-first.Total[i]) // an endpoint that began anew counts from zero
	}
	rate /= over
	n := Capacity(instances)
	wanted := int(math.Ceil(rate / s.Target))
	inputs := map[string]float64{"rate": rate, "target": s.Target, "instances": float64(n), "wanted": float64(wanted)}
	if wanted > n && n < s.Max {
		p.quiet = time.Time{}
		return Wish{Verb: pando.VerbReplicate, Inputs: inputs,
			Reason: fmt.Sprintf("%.0f %s on %d instances, target %g each", rate, s.By, n, s.Target)}
	}
	return p.shrink(s, instances, now.At, rate, inputs)
}

func (p *Policy) shrink(s pando.Scale, instances []pando.Instance, now time.Time, rate float64, inputs map[string]float64) Wish {
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
	p.quiet = now
	youngest, ok := Youngest(instances)
	if !ok {
		return Wish{}
	}
	return Wish{Verb: pando.VerbHalt, Instance: youngest.ID, Inputs: inputs,
		Reason: fmt.Sprintf("%.0f %s for %gs: %d instances do at a target of %g each", rate, s.By, s.QuietSeconds, serving-1, s.Target)}
}

// Youngest returns the instance that leaves first when somebody else chooses: the last that was born of those that take
// flows, a replica rather than the first instance.
func Youngest(instances []pando.Instance) (pando.Instance, bool) {
	in := slices.DeleteFunc(slices.Clone(instances), func(i pando.Instance) bool { return !i.Phase.TakesFlows() })
	if len(in) == 0 {
		return pando.Instance{}, false
	}
	return slices.MaxFunc(in, func(a, b pando.Instance) int {
		if (a.Role == pando.RoleFirst) != (b.Role == pando.RoleFirst) {
			if a.Role == pando.RoleFirst {
				return -1
			}
			return 1
		}
		return a.Born.Compare(b.Born)
	}), true
}
