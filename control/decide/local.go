package decide

import (
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// The records carry the times of their writers, and the clocks of two machines may be minutes
// apart. The functions below return those times on the clock of this process (world.SinceOf), so
// that a rule may measure from them. Their results are never written.

// local returns an instance whose phase began on the clock of this process.
func (d *Draft) local(i pando.Instance) pando.Instance {
	if v, ok := d.w.Instances[i.ID]; !ok || v.V.Phase != i.Phase || v.V.Key() != i.Key() {
		return i // this decision has changed it
	}
	if at, _ := d.w.SinceOf(i.Key()); !at.IsZero() {
		i.Since = at
	}
	return i
}

// locals returns instances whose phases began on the clock of this process.
func (d *Draft) locals(all []pando.Instance) []pando.Instance {
	out := make([]pando.Instance, len(all), len(all)+1)
	for n := range all {
		out[n] = d.local(all[n])
	}
	return out
}

// localDecisions returns the decisions about the service with the times at which they came.
func (d *Draft) localDecisions() []pando.Decision {
	out := make([]pando.Decision, len(d.decisions))
	for n, v := range d.decisions {
		if at, _ := d.w.SinceOf(v.Key()); !at.IsZero() {
			v.At = at
		}
		out[n] = v
	}
	return out
}

// placedAt returns when an intent of control came. It was placed in the commit that created it.
func (d *Draft) placedAt(i *pando.Intent) time.Time {
	if at, _ := d.w.SinceOf(i.Key()); !at.IsZero() {
		return at
	}
	for _, step := range i.History {
		if step.State == pando.IntentPlaced {
			return step.At
		}
	}
	return time.Time{}
}

// localTime returns a time in the record of the service.
func (d *Draft) localTime(t time.Time) time.Time { return d.w.Local(d.svc.ServiceKey, t) }

// localTrial returns the rollout in progress with its times on the clock of this process.
func (d *Draft) localTrial() pando.Trial {
	t := TrialOf(d.svc)
	t.Began = d.localTime(t.Began)
	if t.Paused != nil {
		p := *t.Paused
		p.At = d.localTime(p.At)
		t.Paused = &p
	}
	return t
}

// WithLocalTimes returns instances whose phases began on the clock of this process, for a rule that needs
// to know what is new. A phase that is older than this process's view began at an unknown time.
func WithLocalTimes(w *world.World, all []pando.Instance) []pando.Instance {
	out := slices.Clone(all)
	for n := range out {
		at, seen := w.SinceOf(out[n].Key())
		if at.IsZero() {
			continue // the world has no clock
		}
		if out[n].Since = at; !seen {
			out[n].Since = time.Time{}
		}
	}
	return out
}

// lately reports whether a time that a leader wrote lies within a span before now. A time after now
// is of the clock of an earlier leader. It is older than the change of leaders, and so not late.
func lately(at, now time.Time, span time.Duration) bool {
	age := now.Sub(at)
	return age >= 0 && age < span
}
