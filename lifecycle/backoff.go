package lifecycle

import (
	"time"
)

// The back-off of replacements: the wait doubles from Step to Cap with each round of failures. Failures older than Memory
// are forgotten.
const (
	BackOffStep   = 100 * time.Millisecond
	BackOffCap    = 15 * time.Second
	BackOffMemory = time.Minute
)

// Wait is how a start is held back.
type Wait struct {
	Until    time.Time // no start before; zero: at once
	For      time.Duration
	Failures int // of the last minute, on which it rests
}

// BackOff says how long the next start of a revision waits, after its failures and those of which
// the revision is not known. wanted is how many instances there are to be, and started is when the
// last one was placed (zero: not known).
//
// As many failures as there are instances make a round. The first round is replaced at once, so a
// service that loses less than all of itself in a minute is always replaced at once. From the
// second on, starts are Step apart, then twice that with each round. The wait runs from the last
// start and not from the last failure: however often instances fail, the service is filled up again
// at least once in Cap.
func BackOff(all []Failure, revision, wanted int, started, now time.Time) Wait {
	var w Wait
	var last time.Time
	for _, f := range all {
		if (f.Revision == revision || f.Revision == 0) && now.Sub(f.At) < BackOffMemory && !f.Probed {
			w.Failures++
			last = f.At
		}
	}
	rounds := (w.Failures - 1) / max(1, wanted)
	if rounds < 1 {
		return w
	}
	w.For = BackOffCap
	if shift := rounds - 1; shift < 10 {
		w.For = min(w.For, BackOffStep<<shift)
	}
	if started.IsZero() {
		started = last
	}
	if until := started.Add(w.For); until.After(now) {
		w.Until = until
	}
	return w
}
