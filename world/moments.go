package world

import (
	"time"

	"pando.run/pando"
)

// moments hold when this process received records, on its own clock. Every host writes its records
// by its own clock, and the clocks of two hosts may be minutes apart. A rule that needs a duration
// therefore measures from here, and never from a time in a record of another process.
type moments struct {
	now    time.Time // of the changes that come next; zero: the world has no clock
	began  time.Time // of the first change
	loaded bool      // the first snapshot has been applied: what comes now is new
	// of holds, for each time in a service's record, when that time came, or zero if it is older than
	// the view. Two clocks do not write the same nanosecond.
	of map[pando.ServiceKey]map[int64]time.Time
	// drains holds, for each drained host, when its mark came, as of does.
	drains map[pando.HostName]drainMoment
}

// drainMoment is when a mark of a drained host came.
type drainMoment struct {
	written int64     // HostDrain.At
	came    time.Time // on this process's clock; zero: before its view
}

// At sets the time of this process's clock for the changes that follow.
func (w *World) At(now time.Time) {
	if w.clock.began.IsZero() {
		w.clock.began = now
	}
	w.clock.now = now
}

// moment returns the time for something that is new to this process, or zero if it may be older
// than its view.
func (w *World) moment() time.Time {
	if !w.clock.loaded {
		return time.Time{}
	}
	return w.clock.now
}

// since returns when a record began on this process's clock: an instance with its phase, any other
// with its creation.
func (w *World) since(v pando.Stored, was noted, known bool) time.Time {
	if w.clock.now.IsZero() {
		return time.Time{}
	}
	if !known {
		was, known = w.former[v.Key()]
	}
	if known {
		i, instance := v.(pando.Instance)
		o, _ := was.value.(pando.Instance)
		if !instance || i.Phase == o.Phase {
			return was.since
		}
	}
	return w.moment()
}

// SinceOf returns when a record began on this process's clock: an instance with its phase, any
// other with its creation. A record that is older than this process's view began no later than the
// view: seen is false. A world without a clock returns zero.
func (w *World) SinceOf(k pando.Key) (at time.Time, seen bool) {
	if at = w.byKey[k].since; at.IsZero() {
		return w.clock.began, false
	}
	return at, true
}

// CreatedOf returns the commit that created a record, or 0 if the world does not have it.
func (w *World) CreatedOf(k pando.Key) pando.StoreRevision { return w.byKey[k].created }

// Local returns when a time in the record of a service came to this process, on its own clock. A
// time that is older than this process's view stays as its writer has written it, but no later than
// the view.
func (w *World) Local(s pando.ServiceKey, t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	at, stored := w.clock.of[s][t.UnixNano()]
	switch {
	case !at.IsZero():
		return at
	case stored && t.After(w.clock.began):
		return w.clock.began
	}
	return t // this process is about to write it
}

// noteTimes notes the times in the record of a service.
func (w *World) noteTimes(s pando.Service) {
	if w.clock.now.IsZero() {
		return
	}
	was, now := w.clock.of[s.ServiceKey], map[int64]time.Time{}
	note := func(t time.Time) {
		if t.IsZero() {
			return
		}
		at, known := was[t.UnixNano()]
		if !known {
			at = w.moment()
		}
		now[t.UnixNano()] = at
	}
	note(s.Asked)
	if s.Trial != nil {
		note(s.Trial.Began)
		if s.Trial.Paused != nil {
			note(s.Trial.Paused.At)
		}
	}
	if s.Book != nil {
		for _, r := range s.Book.Runs {
			note(r.Ended)
			if r.Active() {
				note(r.Began)
				note(r.Alive)
			}
		}
	}
	if w.clock.of == nil {
		w.clock.of = map[pando.ServiceKey]map[int64]time.Time{}
	}
	w.clock.of[s.ServiceKey] = now
}

// noteDrain notes whether an operator drains a host, and since when.
func (w *World) noteDrain(m pando.Member) {
	if m.Drain == nil {
		w.dropDrain(m.Name)
		return
	}
	w.Drained[m.Name] = true
	if written := m.Drain.At.UnixNano(); w.clock.drains[m.Name].written != written {
		if w.clock.drains == nil {
			w.clock.drains = map[pando.HostName]drainMoment{}
		}
		w.clock.drains[m.Name] = drainMoment{written, w.moment()}
	}
}

func (w *World) dropDrain(h pando.HostName) {
	delete(w.Drained, h)
	delete(w.clock.drains, h)
}

// DrainEnds returns when the drain of a host ends by itself, on this process's clock. Zero: it is
// not drained, or the mark stays until an operator takes it away. The length of a drain that is older
// than this process's view counts from the time that its writer has written, and no later than the
// view.
func (w *World) DrainEnds(h pando.HostName) time.Time {
	d := w.Members[h].V.Drain
	if d == nil || d.Until.IsZero() {
		return time.Time{}
	}
	began := w.clock.drains[h].came
	if began.IsZero() {
		began = d.At
		if at := w.clock.began; !at.IsZero() && began.After(at) {
			began = at
		}
	}
	return began.Add(d.Until.Sub(d.At))
}
