package lifecycle

import (
	"maps"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
)

// ExitCode is the input of a failed decision that carries the program's exit code. It is absent
// when the program did not exit by itself.
const ExitCode = "exit_code"

// Revision is the input that carries the revision of the instance that an intent placed or that a
// decision concerns.
const Revision = "revision"

// Served is the input of a failed decision that carries how many seconds the instance was in
// rotation, on the clock of its host. It is absent if it never was.
const Served = "served_seconds"

// OfEnd returns the kind of decision about the end of an instance. An instance of a run, or of a
// service that the restart policy does not restart, has done its work when it exits with 0.
func OfEnd(exit *pando.Exit, run bool, policy pando.RestartPolicy) pando.DecisionKind {
	clean := exit != nil && exit.Code == 0 && exit.Signal == ""
	if clean && (run || policy == pando.RestartNo || policy == pando.RestartOnFailure) {
		return pando.DecidedEnded
	}
	return pando.DecidedFailed
}

// isEnd reports whether a decision is about an instance that ended by itself.
func isEnd(d pando.Decision) bool {
	return d.Kind == pando.DecidedFailed || d.Kind == pando.DecidedEnded
}

// Failure is the unrequested end of one instance: it exited, was killed, or never became ready.
type Failure struct {
	At       time.Time           // on the clock of the reader
	Created  pando.StoreRevision // the commit that recorded it
	Revision int                 // of the instance, or 0 if unknown
	Reason   string
	Clean    bool          // it exited with 0
	Served   time.Duration // it was in rotation for so long
	Times    int           // how many equal ones it stands for; 0 is 1
}

// times returns the number of failures that f stands for.
func (f Failure) times() int { return max(1, f.Times) }

// CountFailures returns the number of failures, with those that one record stands for.
func CountFailures(all []Failure) (n int) {
	for _, f := range all {
		n += f.times()
	}
	return n
}

// Failures returns the failures since the last deploy, oldest first. The decisions are in the order
// of the store, so no clock decides which came after the deploy. A new spec is a new chance.
// revision returns the revision of an instance if the decision lacks it, or 0 if unknown. created
// returns the commit that recorded a decision. Nil: unknown.
func Failures(decisions []pando.Decision, revision func(pando.InstanceID) int,
	created func(pando.Decision) pando.StoreRevision) []Failure {
	var out []Failure
	for _, d := range decisions {
		switch d.Kind {
		case pando.DecidedDeploy:
			out = nil
		case pando.DecidedFailed, pando.DecidedEnded:
			by, known := d.Inputs[Revision]
			if !known {
				by = float64(revision(d.Instance))
			}
			f := Failure{At: d.At, Revision: int(by), Reason: d.Reason, Clean: cleanExit(d),
				Served: pando.Seconds(d.Inputs[Served]), Times: d.Times()}
			if created != nil {
				f.Created = created(d)
			}
			out = append(out, f)
		}
	}
	return out
}

// Revisions returns the revision of each instance that an intent placed, or that has a record. The
// intents cover the instances that are gone.
func Revisions(intents []pando.Intent, instances []pando.Instance) map[pando.InstanceID]int {
	out := map[pando.InstanceID]int{}
	for _, i := range intents {
		if n, ok := i.Inputs[Revision]; ok {
			out[i.Instance] = int(n)
		}
	}
	for n := range instances {
		out[instances[n].ID] = instances[n].Revision
	}
	return out
}

// LastWords returns the last log lines of the newest failure of a revision. The failures are those
// of the decisions.
func LastWords(decisions []pando.Decision, failures []Failure, revision int) []string {
	for _, v := range slices.Backward(decisions) {
		if !isEnd(v) || len(failures) == 0 {
			continue
		}
		newest := failures[len(failures)-1]
		failures = failures[:len(failures)-1]
		if newest.Revision == revision {
			return v.Lines
		}
	}
	return nil
}

// Ended counts the instances that ran to their end since the last deploy and that the restart
// policy does not replace.
func Ended(decisions []pando.Decision, policy pando.RestartPolicy) int {
	return len(ended(decisions, policy))
}

// Remembered returns the decisions about a service that must be kept, regardless of newer ones.
// They are its last deploy and the newest `most` ends that the restart policy does not replace.
// Without them a finished job would start again.
func Remembered(decisions []pando.Decision, policy pando.RestartPolicy, most int) map[string]bool {
	out := map[string]bool{}
	for _, d := range decisions {
		if d.Kind == pando.DecidedDeploy {
			clear(out)
			out[d.ID] = true
		}
	}
	ends := ended(decisions, policy)
	for _, d := range ends[max(0, len(ends)-most):] {
		out[d.ID] = true
	}
	return out
}

func ended(decisions []pando.Decision, policy pando.RestartPolicy) []pando.Decision {
	var out []pando.Decision
	for _, d := range decisions {
		switch {
		case d.Kind == pando.DecidedDeploy:
			out = nil
		case !isEnd(d):
		case policy == pando.RestartNo, policy == pando.RestartOnFailure && cleanExit(d):
			out = append(out, d)
		}
	}
	return out
}

// failuresShown is the number of equal failures of a service that keep a record each. Older ones
// share one.
const failuresShown = 3

// Folded returns the decisions that take the place of several equal failures, and the keys of those
// that they replace, at most `most`. A program that fails without end thus pushes nothing else out
// of the history. Failures that the restart policy does not replace, and those of a run, are
// counted one by one elsewhere and stay.
func Folded(
	decisions []pando.Decision, policy pando.RestartPolicy, most int,
) (put []pando.Decision, gone []pando.Key) {
	type cause struct {
		revision, code float64
		clean          bool
		reason         string
	}
	causeOf := func(d pando.Decision) cause {
		return cause{d.Inputs[Revision], d.Inputs[ExitCode], cleanExit(d), withoutNumbers(d.Reason)}
	}
	of := map[cause][]int{}
	for n, d := range decisions {
		_, run := d.Inputs[Run]
		final := policy == pando.RestartNo || policy == pando.RestartOnFailure && cleanExit(d)
		switch {
		case d.Kind == pando.DecidedDeploy:
			clear(of) // what it forgets is trimmed
		case d.Kind == pando.DecidedFailed && !run && !final && d.Inputs[Served] < Healed.Seconds():
			of[causeOf(d)] = append(of[causeOf(d)], n)
		}
	}
	for n, d := range decisions { // in order, so that the result does not depend on a map
		if d.Kind != pando.DecidedFailed {
			continue
		}
		all := of[causeOf(d)]
		if len(all) < failuresShown+2 || all[0] != n {
			continue
		}
		middle := all[1 : len(all)-failuresShown]
		middle = middle[:min(len(middle), most-len(gone))]
		if len(middle) == 0 {
			continue
		}
		d.Inputs = maps.Clone(d.Inputs)
		times := d.Times()
		for _, m := range middle {
			times += decisions[m].Times()
			gone = append(gone, decisions[m].Key())
		}
		d.Inputs[pando.InputTimes] = float64(times)
		put = append(put, d)
	}
	return put, gone
}

// withoutNumbers returns a text whose numbers do not tell it from others.
func withoutNumbers(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

func cleanExit(d pando.Decision) bool {
	code, ok := d.Inputs[ExitCode]
	return ok && code == 0
}

// MayEnd reports whether one more instance of a service may be ended because its live probes fail.
// inRotation counts the instances that take new flows, including this one. unhealthy counts those
// already leaving for the same reason. total counts all of them. At most a quarter is out at a time
// (one of fewer than eight), and never the last in rotation. Overload is not death, and each end
// adds to the load of the others.
func MayEnd(unhealthy, inRotation, total int) bool {
	return inRotation > 1 && unhealthy < max(1, total/4)
}
