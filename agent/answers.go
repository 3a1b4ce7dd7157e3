package agent

import (
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
)

// answers keeps the newest answers of an instance to its probes, and the health they show. Its
// methods may be called from any goroutine.
type answers struct {
	mu     sync.Mutex
	newest []pando.ProbeAnswer // oldest first, at most pando.AnswersKept
	busy   bool
}

// note adds an answer. failed is nil for a good one.
func (a *answers) note(at time.Time, p pando.ProbeKind, failed error) {
	one := pando.ProbeAnswer{At: at, Probe: p}
	if failed != nil {
		one.Error = records.OneLine(failed.Error(), records.EvidenceBytesMax)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.newest); n >= pando.AnswersKept {
		a.newest = a.newest[n-pando.AnswersKept+1:]
	}
	a.newest = append(slices.Clip(a.newest), one)
}

// overload notes whether the instance is overloaded.
func (a *answers) overload(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = is
}

// of returns the health of an instance in a phase, and its newest answers.
func (a *answers) of(p pando.Phase) (pando.HealthState, []pando.ProbeAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	is := pando.HealthReady
	switch {
	case p == pando.PhasePlaced || p == pando.PhaseStarting:
		is = pando.HealthStarting
	case p == pando.PhaseFailed:
		is = pando.HealthDead
	case a.busy:
		is = pando.HealthOverloaded
	}
	return is, slices.Clone(a.newest)
}
