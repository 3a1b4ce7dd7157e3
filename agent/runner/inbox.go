package runner

import (
	"context"
	"fmt"
	"sync"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
)

// RecordChanged sends control's newest write to the instance.
func (r *Runner) RecordChanged(i pando.Instance) { r.post(recordChanged{i}) }

// RecordGone reports that the record of the instance is deleted.
func (r *Runner) RecordGone() { r.post(recordGone{}) }

// RecordOld reports that the record has an older step than the instance.
func (r *Runner) RecordOld() { r.post(recordOld{}) }

// SecretsChanged reports that a secret of the service has changed.
func (r *Runner) SecretsChanged() { r.post(secretsChanged{}) }

// ConfigsChanged reports that a service that the templates of the instance name has changed.
func (r *Runner) ConfigsChanged() { r.post(configsChanged{}) }

// LookAgain reports that something for which the runner waits has changed.
func (r *Runner) LookAgain() { r.post(look{}) }

// Outgrown ends the instance, because one of its volumes has its size or fills the disk.
func (r *Runner) Outgrown(why string) { r.post(outgrown{why}) }

// ExpectAsk counts the asks that are on their way and may claim the instance from the reserve.
func (r *Runner) ExpectAsk(more int) { r.post(called{more}) }

// ReportReady reports that the application is ready.
func (r *Runner) ReportReady() { r.post(readyReported{}) }

// ReportLead reports the term in which the instance leads; 0: it follows.
func (r *Runner) ReportLead(term int64) { r.post(leads{term}) }

// Depart stops the steps of the instance for a move, and marks it durably.
func (r *Runner) Depart(ctx context.Context, m pando.Move) error {
	answer := make(chan error, 1)
	r.post(departs{m, answer})
	var err error
	select {
	case err = <-answer:
	case <-r.ended:
		err = fmt.Errorf("%w: the instance has ended", pando.ErrConflict)
	}
	return err
}

// Stay takes the mark of a move away. Resumed follows once the program runs on.
func (r *Runner) Stay() { r.post(stays{}) }

// Resumed reports that the program runs on after a move that failed.
func (r *Runner) Resumed() { r.post(resumed{}) }

// Die ends the instance at the request of its application, for a reason.
func (r *Runner) Die(
	ctx context.Context, reason string, inputs map[string]float64,
) (pando.Intent, error) {
	if err := dyingMayBegin(r.Status().Instance.Phase); err != nil { // even while the runner is busy
		return pando.Intent{}, err
	}
	answer := make(chan death, 1)
	r.post(deathAsked{ctx, reason, inputs, answer})
	select {
	case d := <-answer:
		return d.intent, d.err
	case <-ctx.Done():
		return pando.Intent{}, ctx.Err()
	case <-r.ended:
	}
	select {
	case d := <-answer: // the runner has ended after it
		return d.intent, d.err
	default:
		return pando.Intent{}, fmt.Errorf("instance %s: %w on this host", r.ID, pando.ErrNotFound)
	}
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

func (look) isMessage() {}

func (recordChanged) isMessage() {}

func (recordGone) isMessage() {}

func (recordOld) isMessage() {}

func (readyReported) isMessage() {}

func (called) isMessage() {}

func (leads) isMessage() {}

func (stopEnded) isMessage() {}

func (imagePulled) isMessage() {}

func (imageWaits) isMessage() {}

func (outgrown) isMessage() {}

func (seedTaken) isMessage() {}

func (deathAsked) isMessage() {}

func (secretsChanged) isMessage() {}

func (secretsBrought) isMessage() {}

func (configsChanged) isMessage() {}

func (configsBrought) isMessage() {}

func (flowsCounted) isMessage() {}

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

// departs is the order to stop for a move.
type departs struct {
	move   pando.Move
	answer chan<- error // has room for it
}

type (
	stays   struct{} // the move failed: the mark goes
	resumed struct{} // the program runs on here
)

func (departs) isMessage() {}

func (stays) isMessage() {}

func (resumed) isMessage() {}

// post sends a message to the runner. It never waits.
func (r *Runner) post(m message) { r.inbox.put(m) }

// deathAsked is the request of an application to die.
type deathAsked struct {
	ctx    context.Context // of the request
	reason string
	inputs map[string]float64
	answer chan<- death // has room for the answer
}

// death is the answer to a request to die.
type death struct {
	intent pando.Intent
	err    error
}

// dyingMayBegin refuses death before halt.
func dyingMayBegin(p pando.Phase) error {
	if p == pando.PhaseDraining || p == pando.PhaseDrained {
		return nil
	}
	return fmt.Errorf("die %w: the instance is %s; halt it first", pando.ErrRefused, p)
}

// hookEnded is the end of a hook.
type hookEnded struct {
	exit pando.Exit
	late bool // it did not end in time
}

func (hookEnded) isMessage() {}

// configOutcome is the result of a look at the configs of an instance.
type configOutcome struct {
	changed []string
	refused map[string]refusal
	err     error // none could be rendered
}

// refusal is the reason for which a config keeps its content.
type refusal struct {
	reason string
	lines  []string
}
