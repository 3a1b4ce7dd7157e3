package agent

import (
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
)

// status is the state of a runner as its host sees it: a copy that nothing changes.
type status struct {
	inst   pando.Instance
	box    pando.Sandbox // nil: none
	link   pando.Link    // of box
	runs   bool          // it has a sandbox, and its program has not ended
	begun  bool          // its start took the prepared work, if there was any
	born   time.Time     // see runner.born
	silent string        // why its shim does not answer; "": it does
}

// endpoint returns the place of the instance in the steering table. ok is false if it has none.
//
// A starting instance has one, because a former agent may have steered flows to it and died before
// it recorded that.
func (s status) endpoint() (e pando.Endpoint, ok bool) {
	if !s.runs || s.inst.Phase == pando.PhaseFailed || s.inst.Run != nil {
		return e, false
	}
	e = pando.Endpoint{Instance: s.inst.ID, Revision: s.inst.Revision, Link: s.link}
	switch p := s.inst.Phase; {
	case p.TakesFlows():
		e.Weight = s.inst.Weight
	case p == pando.PhaseWarm, p == pando.PhasePlaced,
		p == pando.PhaseStarting && !s.inst.Warm:
		e.Soon = s.inst.Weight
	}
	return e, true
}

// movesFlows reports whether the steering table differs between two states of a runner.
func movesFlows(was, now status) bool {
	e, had := was.endpoint()
	f, has := now.endpoint()
	return had != has || e.Weight != f.Weight || e.Soon != f.Soon || e.Revision != f.Revision
}

// controlled returns an instance after control's newest write to its record. fresh is false if the
// write is known. Control writes two steps: placed over warm, and draining. It also orders an
// instance of a stateful service to start, and a drain to end.
func controlled(mine, theirs pando.Instance) (now pando.Instance, fresh bool) {
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

// message is a message to a runner.
type message interface{ isMessage() }

// These are the messages to a runner.
type (
	look          struct{}                      // something that it waits for has changed
	recordChanged struct{ inst pando.Instance } // control wrote a step
	recordGone    struct{}                      // its record is deleted
	recordOld     struct{}                      // its record has an older step than it
	readyReported struct{}                      // by the application
	called        struct{ by int }              // more or fewer asks on their way may claim it
	leads         struct{ term int64 }          // it leads in a term; 0: it follows
	stopEnded     struct{ err error }           // of its sandbox
	imagePulled   struct{ err error }           // nil: the layers of its image are on this host
	imageWaits    struct{ what string }         // its pull waits for a registry or a turn; "": no more

	outgrown struct{ why string } // by a volume: it has its size, or fills the disk

	flowsCounted struct{ count flows.Count } // while it drains

	seedTaken struct{} // or refused: its program runs on

	secretsChanged struct{} // of its service
	secretsBrought struct {
		changed []string
		err     error
	}

	// A service or a secret that its templates name has changed, or it is time for a retry.
	configsChanged struct{ retry bool }
	configsBrought struct{ outcome configOutcome }
)

func (look) isMessage()           {}
func (recordChanged) isMessage()  {}
func (recordGone) isMessage()     {}
func (recordOld) isMessage()      {}
func (readyReported) isMessage()  {}
func (called) isMessage()         {}
func (leads) isMessage()          {}
func (stopEnded) isMessage()      {}
func (imagePulled) isMessage()    {}
func (imageWaits) isMessage()     {}
func (outgrown) isMessage()       {}
func (flowsCounted) isMessage()   {}
func (seedTaken) isMessage()      {}
func (deathAsked) isMessage()     {}
func (secretsChanged) isMessage() {}
func (secretsBrought) isMessage() {}
func (configsChanged) isMessage() {}
func (configsBrought) isMessage() {}

// inbox holds the messages that a runner has not received yet. A sender never waits.
type inbox struct {
	mu       sync.Mutex
	messages []message
	filled   chan struct{} // holds an element when there may be a message
}

func (b *inbox) put(m message) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.mu.Unlock()
	select {
	case b.filled <- struct{}{}:
	default:
	}
}

// take removes all messages, oldest first.
func (b *inbox) take() (all []message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, b.messages = b.messages, nil
	return all
}
