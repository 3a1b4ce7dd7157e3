package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// The back-off of replacements. The wait doubles from Step to Cap with each round of failures.
// Failures older than Memory do not count.
const (
	BackOffStep   = 100 * time.Millisecond
	BackOffCap    = 15 * time.Second
	BackOffMemory = time.Minute
)

// Wait is the delay of a start.
type Wait struct {
	Until    time.Time // no start before this; zero means at once
	For      time.Duration
	Failures int // of the last minute, on which it rests
}

// Reason returns the reason of the wait. wanted is the number of instances there have to be.
func (w Wait) Reason(wanted int) string {
	return fmt.Sprintf("%d failures in the last minute, %d instances wanted: starts are %s apart",
		w.Failures, wanted, w.For)
}

// Inputs returns the inputs of the decision to wait.
func (w Wait) Inputs() map[string]float64 {
	return map[string]float64{"failures": float64(w.Failures), "wait_seconds": w.For.Seconds()}
}

// Recorded reports whether a recent decision has this wait already. Each length is recorded once a
// minute.
func (w Wait) Recorded(decisions []pando.Decision, now time.Time) bool {
	return slices.ContainsFunc(decisions, func(d pando.Decision) bool {
		return d.Kind == pando.DecidedBackOff && d.Inputs["wait_seconds"] == w.For.Seconds() &&
			now.Sub(d.At) < BackOffMemory
	})
}

// LastStart returns when control itself last placed an instance, or zero if that is unknown.
// Intents are oldest first.
func LastStart(intents []pando.Intent) time.Time {
	for n := len(intents) - 1; n >= 0; n-- {
		i := &intents[n]
		if i.Verb != pando.VerbReplicate || i.By.Kind != pando.AskerControl {
			continue
		}
		for _, step := range i.History {
			if step.State == pando.IntentPlaced {
				return step.At
			}
		}
	}
	return time.Time{}
}

// BackOff returns the wait before the next start of a revision. It counts the failures of that
// revision and those without a known revision. wanted is the number of instances there have to be.
// started is when the last one was placed (zero: unknown).
//
// As many failures as wanted instances make a round. The first round is replaced at once, so a
// service that loses less than all of itself in a minute always gets replacements at once. From the
// second round on, starts are Step apart, and the wait doubles with each round. The wait runs from
// the last start and not from the last failure. However often instances fail, the service is filled
// up at least once per Cap.
func BackOff(all []Failure, revision, wanted int, started, now time.Time) Wait {
	var w Wait
	var last time.Time
	for _, f := range all {
		if (f.Revision == revision || f.Revision == 0) && now.Sub(f.At) < BackOffMemory {
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
