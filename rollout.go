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
	// Canary is the share of new flows for the new revision until it has soaked, above 0 and at most
	// 0.5. 0: its instances get whole shares at once. For start-first only.
	Canary float64 `json:"canary,omitempty"`
	// SoakSeconds is the time in rotation of the canaries before the rollout continues: 30.
	SoakSeconds float64 `json:"soak_seconds,omitempty"`
	// DeadlineSeconds is the time for the whole rollout, without its pauses. 0: no limit, and 600 with
	// a canary.
	DeadlineSeconds float64 `json:"deadline_seconds,omitempty"`
	// Gate compares the revisions while the canaries soak, and until the end. For a canary only.
	Gate Gate `json:"gate,omitzero"`
}

// Gate compares a number of the application (PUT /v1/self/metrics) between the new revision and the
// one that serves. A larger number is worse. The zero value compares nothing.
type Gate struct {
	Metric Metric `json:"metric,omitempty"`
	// WorseThan is the factor over the mean of the serving revision that the gate allows: 1.5.
	WorseThan float64 `json:"worse_than,omitempty"`
	// Above is the number up to which the new revision always passes: 0.
	Above float64 `json:"above,omitempty"`
}

// Compared is the newest finding of a gate.
type Compared struct {
	At  time.Time `json:"at"`
	New float64   `json:"new"` // mean of the instances of the new revision
	// Old is the mean of the revision that serves. Nil: none of its instances reports the number.
	Old *float64 `json:"old,omitempty"`
	// Over is set while the new revision exceeds the gate. The canaries do not pass meanwhile.
	Over  bool `json:"over,omitempty"`
	Worse bool `json:"worse,omitempty"` // it was over for long enough: the rollout ends
}

// Trial is the progress of a rollout, in the record of its service.
type Trial struct {
	Began  time.Time `json:"began"`
	Paused *Pause    `json:"paused,omitempty"`
	// PausedSeconds is the length of the former pauses. No gate counts them.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
	// Share is the share of new flows for all revisions but the one that serves. 0: each instance
	// counts by its own weight.
	Share float64 `json:"share,omitempty"`
	// Soaked is set once the canaries have soaked and passed the gate.
	Soaked   bool      `json:"soaked,omitempty"`
	Compared *Compared `json:"compared,omitempty"`
}

// Age returns the time since the rollout began, without its pauses.
func (t Trial) Age(now time.Time) time.Duration {
	if t.Paused != nil {
		now = t.Paused.At
	}
	return max(0, now.Sub(t.Began)-Seconds(t.PausedSeconds))
}

// Soaking reports whether canaries get a share of new flows.
func (s Service) Soaking() bool { return s.Trial != nil && s.Trial.Share > 0 }

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
	// EndDrains ends the drains of a service: its draining instances wait for no connection, and
	// neither do those that a removal takes out later. ErrRefused: none drains.
	EndDrains(ctx context.Context, s ServiceKey, by Asker) error
	// Restart replaces the instances of a service by new ones of the same revision: a new one serves
	// before an old one leaves, unless the service stops first. ErrRefused: a rollout is in progress,
	// or there is no instance. ErrNotFound: it has no such instance.
	Restart(ctx context.Context, s ServiceKey, ask RestartAsk, by Asker) (ServiceStatus, error)
	// ResumeRollout continues a paused rollout. ErrRefused: no rollout is in progress.
	ResumeRollout(ctx context.Context, s ServiceKey, by Asker) (RolloutStatus, error)
	// UndoRollout ends the rollout in progress: the new instances leave, and the revision that serves
	// fills up. Outside a rollout it is Rollback to the revision that served before.
	UndoRollout(ctx context.Context, s ServiceKey, reason string, by Asker) (ServiceStatus, error)
}
