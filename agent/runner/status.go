package runner

import (
	"time"

	"pando.run/pando"
)

// Status is the state of a runner as its host sees it: a copy that nothing changes.
type Status struct {
	Instance pando.Instance
	Box      pando.Sandbox // nil: none
	Link     pando.Link    // of box
	Runs     bool          // it has a sandbox, and its program has not ended
	Begun    bool          // its start took the prepared work, if there was any
	Born     time.Time     // by the clock of this host
	Silent   string        // why its shim does not answer; "": it does
}

// Endpoint returns the place of the instance in the steering table. ok is false if it has none.
//
// A starting instance has one, because a former agent may have steered flows to it and died before
// it recorded that.
func (s Status) Endpoint() (e pando.Endpoint, ok bool) {
	if !s.Runs || s.Instance.Phase == pando.PhaseFailed || s.Instance.Run != nil {
		return e, false
	}
	e = pando.Endpoint{Instance: s.Instance.ID, Revision: s.Instance.Revision, Link: s.Link}
	switch p := s.Instance.Phase; {
	case p.TakesFlows():
		e.Weight = s.Instance.Weight
	case p == pando.PhaseWarm, p == pando.PhasePlaced,
		p == pando.PhaseStarting && !s.Instance.Warm:
		e.Soon = s.Instance.Weight
	}
	return e, true
}

// MovesFlows reports whether the steering table differs between two states of a runner.
func MovesFlows(was, now Status) bool {
	e, had := was.Endpoint()
	f, has := now.Endpoint()
	return had != has || e.Weight != f.Weight || e.Soon != f.Soon || e.Revision != f.Revision
}

// AfterControl returns an instance after control's newest write to its record. fresh is false if
// the write is known. Control writes two steps: placed over warm, and draining. It also orders an
// instance of a stateful service to start, and a drain to end.
func AfterControl(mine, theirs pando.Instance) (now pando.Instance, fresh bool) {
	if mine.Phase == pando.PhasePlaced && theirs.Phase == mine.Phase && theirs.Start != mine.Start {
		mine.Start, mine.Reason = theirs.Start, theirs.Reason
		return mine, true
	}
	if mine.Phase == pando.PhaseDraining && theirs.Phase == mine.Phase && theirs.EndNow && !mine.EndNow {
		mine.EndNow = true
		return mine, true
	}
	claimed := theirs.Phase == pando.PhasePlaced && mine.Phase == pando.PhaseWarm && !theirs.Warm
	halted := theirs.Phase == pando.PhaseDraining && mine.Phase.May(pando.PhaseDraining)
	if !claimed && !halted {
		return mine, false
	}
	theirs.IP4, theirs.IP6 = mine.IP4, mine.IP6 // only the agent has the addresses
	theirs.Term = mine.Term                     // likewise its term
	return theirs, true
}
