package pando

import (
	"context"
	"time"
)

// RolloutOrder decides whether two revisions of a service may run at the same time.
type RolloutOrder string

const (
	StartFirst RolloutOrder = "start-first" // a new instance serves before an old one leaves
	StopFirst  RolloutOrder = "stop-first"  // an old instance has ended before a new one starts
)

// Rollout describes how a new revision takes over.
type Rollout struct {
	// Order is start-first by default, and stop-first where scale.max is given as 1 or instances
	// have volumes of their own.
	Order RolloutOrder `json:"order,omitempty"`
	// Surge is the number of instances beyond the target, for start-first only: 1.
	Surge int `json:"surge,omitempty"`
	// HealthySeconds is the time in rotation before the next step: 1.
	HealthySeconds float64 `json:"healthy_seconds,omitempty"`
}

// Trial is the progress of a rollout, in the record of its service.
type Trial struct {
	Began  time.Time `json:"began"`
	Paused *Pause    `json:"paused,omitempty"`
	// PausedSeconds is the length of the former pauses. No gate counts them.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
}

// Age returns the time since the rollout began, without its pauses.
func (t Trial) Age(now time.Time) time.Duration {
	if t.Paused != nil {
		now = t.Paused.At
	}
	return max(0, now.Sub(t.Began)-Seconds(t.PausedSeconds))
}

// Paused reports whether an operator paused the rollout in progress.
func (s Service) Paused() bool { return s.Trial != nil && s.Trial.Paused != nil }

// Pause is the halt of a rollout by an operator.
type Pause struct {
	By     Asker     `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// RolloutStatus is the output of `pando rollout status`.
type RolloutStatus struct {
	Service ServiceKey `json:"service"`
	Rolling bool       `json:"rolling"` // a rollout is in progress
	From    int        `json:"from"`    // the revision that serves; 0: none has served yet
	To      int        `json:"to"`      // the newest wanted revision
	Wanted  int        `json:"wanted"`  // instances at the end
	Old     int        `json:"old"`     // instances of other revisions than To that serve or soon will
	New     int        `json:"new"`     // instances of To that serve or soon will
	Healthy int        `json:"healthy"` // of New, in rotation for long enough
	Trial   *Trial     `json:"trial,omitempty"`
	// Next is the next step and its reason, or the reason for the wait.
	Next string `json:"next,omitempty"`
	// Outcome is the end of the newest rollout: the revision, its state and the reason.
	Outcome *RolloutOutcome `json:"outcome,omitempty"`
}

// RolloutOutcome is the end of a rollout.
type RolloutOutcome struct {
	Revision int           `json:"revision"`
	State    RevisionState `json:"state"`
	Reason   string        `json:"reason"`
}

// Rollouts are the requests of operators about the rollout of a service.
type Rollouts interface {
	// Rollout returns the progress of the rollout of a service, or the end of the newest one.
	Rollout(ctx context.Context, s ServiceKey) (RolloutStatus, error)
	// PauseRollout halts the rollout in progress. Its failed gates still act. A missing instance is
	// replaced by one of the revision that serves. ErrRefused: no rollout is in progress.
	PauseRollout(ctx context.Context, s ServiceKey, reason string, by Asker) (RolloutStatus, error)
	// ResumeRollout continues a paused rollout. ErrRefused: no rollout is in progress.
	ResumeRollout(ctx context.Context, s ServiceKey, by Asker) (RolloutStatus, error)
	// UndoRollout ends the rollout in progress: the new instances leave, and the revision that serves
	// fills up. Outside a rollout it is Rollback to the revision that served before.
	UndoRollout(ctx context.Context, s ServiceKey, reason string, by Asker) (ServiceStatus, error)
}
