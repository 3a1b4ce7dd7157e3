package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// The back-off of replacements. The wait doubles from Step to Cap with each round of failures. It
// holds until a success: an instance that has been in rotation for Healed.
const (
	BackOffStep = 100 * time.Millisecond
	BackOffCap  = 5 * time.Minute
	Healed      = 30 * time.Second
)

// failingRounds is the number of rounds of failures without a success after which a service is
// failing.
const failingRounds = 3

// Wait is the delay of a start.
type Wait struct {
	Until    time.Time // no start before this; zero means at once
	For      time.Duration
	Failures int    // since the last success, on which it rests
	Last     string // the reason of the newest of them
	Failing  bool   // the service fails without end
}

// Reason returns the reason of the wait. wanted is the number of instances there have to be.
func (w Wait) Reason(wanted int) string {
	return fmt.Sprintf("%d failures without a success, %d instances wanted: starts are %s apart",
		w.Failures, wanted, w.For)
}

// Inputs returns the inputs of the decision to wait.
func (w Wait) Inputs() map[string]float64 {
	return map[string]float64{"failures": float64(w.Failures), "wait_seconds": w.For.Seconds()}
}

// Recorded reports whether the newest decision to wait has this wait already, so that a wait that
// stays is recorded once.
func (w Wait) Recorded(decisions []pando.Decision) bool {
	for _, d := range slices.Backward(decisions) {
		switch d.Kind {
		case pando.DecidedBackOff:
			return d.Inputs["wait_seconds"] == w.For.Seconds()
		case pando.DecidedDeploy:
			return false
		}
	}
	return false
}

// LastStart returns when control itself last placed an instance, or zero if that is unknown. The
// intents are in the order of the store. at returns when an intent came, on the clock of the reader.
func LastStart(intents []pando.Intent, at func(*pando.Intent) time.Time) time.Time {
	for n := len(intents) - 1; n >= 0; n-- {
		i := &intents[n]
		placed := func(t pando.Transition) bool { return t.State == pando.IntentPlaced }
		if i.Verb == pando.VerbReplicate && i.By.Kind == pando.AskerControl &&
			slices.ContainsFunc(i.History, placed) {
			return at(i)
		}
	}
	return time.Time{}
}

// BackOff returns the wait before the next start of a revision. It counts the failures of that
// revision and those without a known revision, since the last success. wanted is the number of
// instances there have to be. started is when the last one was placed (zero: unknown). healed is
// the last commit that created an instance which succeeded (0: none). An instance that failed after
// it had served for long enough is a success before its failure.
//
// As many failures as wanted instances make a round. The first round is replaced at once, so a
// service that loses less than all of itself before a success always gets replacements at once. From
// the second round on, starts are Step apart, and the wait doubles with each round. The wait runs
// from the last start and not from the last failure. However often instances fail, the service is
// filled up at least once per Cap.
func BackOff(
	all []Failure, revision, wanted int, healed pando.StoreRevision, started, now time.Time,
) Wait {
	var w Wait
	var last time.Time
	for _, f := range all {
		if f.Revision != revision && f.Revision != 0 || f.Created != 0 && f.Created <= healed {
			continue
		}
		if f.Served >= Healed {
			w.Failures = 0
		}
		w.Failures += f.times()
		last, w.Last = f.At, f.Reason
	}
	rounds := (w.Failures - 1) / max(1, wanted)
	if rounds < 1 {
		return w
	}
	w.Failing = rounds >= failingRounds
	w.For = BackOffCap
	if shift := rounds - 1; shift < 12 {
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

// HealedBy returns the newest commit that created an instance which has succeeded: it has been in
// rotation for Healed. next is when the next one will succeed (zero: none). since returns when an
// instance entered its phase, on the clock of the reader, and created the commit of its record.
func HealedBy(instances []pando.Instance, since func(*pando.Instance) time.Time,
	created func(*pando.Instance) pando.StoreRevision, now time.Time,
) (healed pando.StoreRevision, next time.Time) {
	for n := range instances {
		i := &instances[n]
		if i.Phase != pando.PhaseInRotation {
			continue
		}
		if at := since(i).Add(Healed); !now.Before(at) {
			healed = max(healed, created(i))
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return healed, next
}
