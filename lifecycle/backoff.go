package lifecycle

import (
	"time"

	"pando.run/pando"
)

// The back-off of replacements: the first is at once, then the wait doubles from Step to Cap. Failures older than Memory
// are forgotten.
const (
	BackOffStep   = 100 * time.Millisecond
	BackOffCap    = 15 * time.Second
	BackOffMemory = time.Minute
)

// BackOff says before when no instance of a service may be started again, given the decisions about it, and how many
// failures in a row that rests on. A zero time is no wait.
func BackOff(decisions []pando.Decision, now time.Time) (notBefore time.Time, failures int) {
	var last time.Time
	for _, d := range decisions {
		switch {
		case d.Kind == pando.DecidedDeploy:
			failures = 0 // a new spec is a new chance
		case d.Kind == pando.DecidedFailed && now.Sub(d.At) < BackOffMemory:
			failures++
			last = d.At
		}
	}
	if failures < 2 {
		return time.Time{}, failures
	}
	wait := BackOffCap
	if shift := failures - 2; shift < 10 {
		wait = min(wait, BackOffStep<<shift)
	}
	return last.Add(wait), failures
}

// Ended counts the instances that ran to their end since the last deploy and that the restart policy does not replace.
func Ended(decisions []pando.Decision, policy pando.RestartPolicy) int {
	n := 0
	for _, d := range decisions {
		switch {
		case d.Kind == pando.DecidedDeploy:
			n = 0
		case d.Kind != pando.DecidedFailed:
		case policy == pando.RestartNo, policy == pando.RestartOnFailure && cleanExit(d):
			n++
		}
	}
	return n
}

// ExitCode is the input of a failed decision that carries the program's exit code; it is absent when the program did not
// exit by itself.
const ExitCode = "exit_code"

func cleanExit(d pando.Decision) bool {
	code, ok := d.Inputs[ExitCode]
	return ok && code == 0
}
