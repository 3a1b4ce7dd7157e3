package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
)

// Needed holds the facts about a service on which another one waits.
type Needed struct {
	Name      pando.ServiceName
	Condition pando.Need
	Known     bool   // it has a record and is not being removed
	Runs      bool   // the program of an instance runs
	Serves    bool   // at least min instances are in rotation
	Completed bool   // its instances ran to their end, with exit code 0
	Ended     string // why its newest instance ended otherwise and is not replaced, or ""
	State     string // its phase with the reason
}

// met reports whether the service has the wanted condition.
func (n Needed) met() bool {
	switch n.Condition {
	case pando.NeedHealthy:
		return n.Serves
	case pando.NeedCompleted:
		return n.Completed
	}
	return n.Runs || n.Serves || n.Completed
}

// Unmet returns why a service has to wait for others, or "" if it may start. The first unmet need
// is named with its state; the rest are named only.
func Unmet(needs []Needed) string {
	var waits []Needed
	for _, n := range needs {
		if !n.Known || !n.met() {
			waits = append(waits, n)
		}
	}
	if len(waits) == 0 {
		return ""
	}
	text := waits[0].wait()
	for _, n := range waits[1:] {
		text += fmt.Sprintf("; then for %s to be %s", n.Name, n.Condition)
	}
	return text
}

func (n Needed) wait() string {
	text := fmt.Sprintf("it waits for %s to be %s", n.Name, n.Condition)
	switch {
	case !n.Known:
		return text + ", and there is no such service: deploy it, or drop it from `needs`"
	case n.Condition == pando.NeedCompleted && n.Ended != "":
		return fmt.Sprintf("%s, and %s: mend %s and deploy it again", text, n.Ended, n.Name)
	}
	return fmt.Sprintf("%s, which is %s", text, n.State)
}

// The time between two looks at the services on which a service waits.
const (
	needsLookLeast = 200 * time.Millisecond
	needsLookMost  = 10 * time.Second
)

// NeedsLook returns the time until the next look at the services on which a service has waited for
// some time. It grows with the wait, so many waiting services cost little.
func NeedsLook(waited time.Duration) time.Duration {
	return min(max(waited/10, needsLookLeast), needsLookMost)
}

// cycleStepsMax bounds the search of Cycle. A cluster has fewer services.
const cycleStepsMax = 100_000

// Cycle returns the services of a cycle of needs through a service, which begins and ends with it,
// or nil if there is none. needs returns the services that a service needs.
func Cycle(
	from pando.ServiceName, needs func(pando.ServiceName) []pando.ServiceName,
) []pando.ServiceName {
	seen := map[pando.ServiceName]bool{}
	// Each path on the stack is a service with the path to it.
	type path struct {
		at   pando.ServiceName
		back *path
	}
	stack := []*path{{at: from}}
	for steps := 0; len(stack) > 0 && steps < cycleStepsMax; steps++ {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, next := range needs(p.at) {
			if next == from {
				out := []pando.ServiceName{from}
				for q := p; q != nil; q = q.back {
					out = append(out, q.at)
				}
				slices.Reverse(out)
				return out
			}
			if !seen[next] {
				seen[next] = true
				stack = append(stack, &path{next, p})
			}
		}
	}
	return nil
}

// CycleText returns the words for a cycle of needs.
func CycleText(cycle []pando.ServiceName) string {
	words := make([]string, len(cycle))
	for i, n := range cycle {
		words[i] = string(n)
	}
	return strings.Join(words, " needs ")
}

// CleanEnds counts the instances that ended with exit code 0 since the last deploy and that the
// restart policy does not replace. last is the reason of the newest such end with another code, or
// "".
func CleanEnds(decisions []pando.Decision, policy pando.RestartPolicy) (clean int, last string) {
	for _, d := range ended(decisions, policy) {
		if cleanExit(d) {
			clean++
			last = ""
		} else {
			last = d.Reason
		}
	}
	return clean, last
}
