package pando

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// KindJob is the kind of a service of which the instances run to their end. It serves no port,
// and nothing replaces an instance that ended with 0.
const KindJob ServiceKind = "job"

// These constants bound the runs of a service.
const (
	RunsKept      = 20 // ended runs in the record of a service
	RunsMax       = 4  // in progress at once
	RunPartsMax   = 32 // instances of one run, and retries of one run
	RunAliveMax   = 30 * time.Second
	RunAliveEvery = 10 * time.Second
	// RunLateMax is how late a scheduled run may start. A later one is missed.
	RunLateMax = time.Minute
)

// Job describes the runs of a job.
type Job struct {
	Parallel int `json:"parallel,omitempty"` // instances of a run that must end with 0: 1
	Retries  int `json:"retries,omitempty"`  // more instances in place of failed ones: 0
	// DeadlineSeconds is the time for a whole run. 0: no limit.
	DeadlineSeconds float64 `json:"deadline_seconds,omitempty"`
	// Schedule is five words of cron. "": each deploy of a new spec starts a run.
	Schedule string  `json:"schedule,omitempty"`
	Zone     string  `json:"zone,omitempty"`    // of Schedule, as Europe/Vienna: UTC
	Overlap  Overlap `json:"overlap,omitempty"` // forbid
}

// Overlap decides about a scheduled run while another one is in progress.
type Overlap string

const (
	OverlapForbid  Overlap = "forbid"  // the new one is missed
	OverlapAllow   Overlap = "allow"   // both run
	OverlapReplace Overlap = "replace" // the older one is ended first
)

// RunState is the progress of a run.
type RunState string

const (
	RunRunning   RunState = "running"   // in progress
	RunSucceeded RunState = "succeeded" // its instances ended with 0
	RunFailed    RunState = "failed"    // Reason has the cause
	RunEnded     RunState = "ended"     // by an operator, by its caller, or by a newer run
)

// Run is one run of a service's spec beside its serving instances, or of a job.
type Run struct {
	Number   int       `json:"number"`
	Revision int       `json:"revision"`
	State    RunState  `json:"state"`
	Reason   string    `json:"reason,omitempty"` // of its end, or why it waits for a host
	By       Asker     `json:"by"`
	Due      time.Time `json:"due,omitzero"` // by the schedule
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended,omitzero"`
	// Command replaces the command of the spec. Nil: the spec's.
	Command []string `json:"command,omitempty"`
	// Attached is set if a caller runs the command in a session. The run ends with the session.
	Attached bool      `json:"attached,omitempty"`
	Alive    time.Time `json:"alive,omitzero"` // the last sign of the caller
	Want     int       `json:"want"`           // instances that must end with 0
	Retries  int       `json:"retries,omitempty"`
	// DeadlineSeconds is the time for the run. 0: no limit.
	DeadlineSeconds float64 `json:"deadline_seconds,omitempty"`
	Done            int     `json:"done"`   // instances that ended with 0
	Failed          int     `json:"failed"` // instances that failed
	Lost            int     `json:"lost,omitempty"`
}

// Active reports whether the run is in progress.
func (r Run) Active() bool { return r.State == RunRunning }

// End returns the run in a final state.
func (r Run) End(s RunState, at time.Time, reason string) Run {
	r.State, r.Ended, r.Reason = s, at, reason
	return r
}

// RunBook is the record of the runs of a service.
type RunBook struct {
	Last   int       `json:"last"`           // the highest number so far
	Runs   []Run     `json:"runs,omitempty"` // oldest first
	Next   time.Time `json:"next,omitzero"`  // of the schedule
	Missed int       `json:"missed,omitempty"`
	// Schedule and Zone are those of Next. A deploy with others computes it anew.
	Schedule string `json:"schedule,omitempty"`
	Zone     string `json:"zone,omitempty"`
}

// Find returns the place of a run in the book, or -1.
func (b *RunBook) Find(number int) int {
	if b == nil {
		return -1
	}
	return slices.IndexFunc(b.Runs, func(r Run) bool { return r.Number == number })
}

// Active counts the runs in progress.
func (b *RunBook) Active() (n int) {
	if b == nil {
		return 0
	}
	for _, r := range b.Runs {
		if r.Active() {
			n++
		}
	}
	return n
}

// Uses reports whether a run in progress is of a revision.
func (b *RunBook) Uses(revision int) bool {
	return b != nil && slices.ContainsFunc(b.Runs, func(r Run) bool {
		return r.Active() && r.Revision == revision
	})
}

// Newest returns the run with the highest number.
func (b *RunBook) Newest() (Run, bool) {
	if b == nil || len(b.Runs) == 0 {
		return Run{}, false
	}
	return b.Runs[len(b.Runs)-1], true
}

// With returns a book with one more run, which gets the next number. It forgets the oldest ended
// runs beyond RunsKept. The book of the caller stays as it is.
func (b *RunBook) With(r Run) *RunBook {
	out := b.Clone()
	out.Last++
	r.Number, r.State = out.Last, RunRunning
	out.Runs = append(out.Runs, r)
	ended := len(out.Runs) - out.Active()
	out.Runs = slices.DeleteFunc(out.Runs, func(r Run) bool {
		drop := !r.Active() && ended > RunsKept
		if drop {
			ended--
		}
		return drop
	})
	return out
}

// Clone returns a copy that shares no run with b, which may be nil.
func (b *RunBook) Clone() *RunBook {
	if b == nil {
		return &RunBook{}
	}
	out := *b
	out.Runs = slices.Clone(b.Runs)
	return &out
}

// RunPart is the part of an instance in a run of its service.
type RunPart struct {
	Number   int      `json:"number"`
	Command  []string `json:"command,omitempty"`  // instead of the spec's
	Attached bool     `json:"attached,omitempty"` // sessions alone start programs in it
	// Beside reports that the volumes belong to the service's other instances: this one reads them.
	Beside bool `json:"beside,omitempty"`
}

// IsJob reports whether the service runs to its end.
func (s Spec) IsJob() bool { return s.Kind == KindJob }

// ForRun returns the spec by which an instance of a run runs: without ports and probes, and
// without a replacement by the agent.
func (s Spec) ForRun(p RunPart) Spec {
	s.Ports = nil
	s.Health.Startup, s.Health.Ready, s.Health.Live = Startup{}, Probe{Kind: ProbeStarted}, Probe{}
	s.State, s.StateCopies = nil, 0
	if p.Command != nil && !p.Attached {
		s.Entrypoint, s.Command = nil, p.Command
	}
	if p.Beside {
		s.Volumes = slices.Clone(s.Volumes)
		for n := range s.Volumes {
			s.Volumes[n].ReadOnly = true
		}
	}
	return s
}

// rarely is a schedule in place of the run that a deploy of a job starts: 29 February.
const rarely = "0 0 29 2 *"

// OnceLabel is a label of the spec of one run. Control removes its service once the run is over, so
// a caller that is killed leaves none.
const OnceLabel = "pando-run-once"

// IsOnce reports whether the service of the spec exists for one run.
func (s Spec) IsOnce() bool { return s.IsJob() && s.Labels[OnceLabel] != "" }

// Once returns the spec of a job for one run of s, under another name. The job takes no connections
// and keeps no state.
func (s Spec) Once(name ServiceName) (Spec, error) {
	why := ""
	switch {
	case s.IsVM():
		why = "a virtual machine has no command of its own"
	case len(s.Endpoints) > 0:
		why = "its endpoints are programs elsewhere"
	case s.Kind == Stateful:
		why = "its volumes belong to instances with numbers"
	}
	if why != "" {
		return Spec{}, fmt.Errorf("%w: one run of %s is not possible: %s; `pando deploy` starts it",
			ErrRefused, s.Name, why)
	}
	s.Name, s.Kind, s.Job = name, KindJob, Job{Schedule: rarely}
	s.Ports, s.State, s.StateCopies, s.Hooks = nil, nil, 0, Hooks{}
	s.Health, s.Restart, s.Scale, s.Replicate = Health{}, "", Scale{}, Replicate{}
	s.Rollout, s.Balance, s.DrainSecondsMax = Rollout{}, Balance{}, 0
	s.Place.Near = ""
	labels := map[string]string{OnceLabel: "yes"}
	maps.Copy(labels, s.Labels)
	s.Labels = labels
	return s, nil
}

// RunAsk is the request of an operator for a run.
type RunAsk struct {
	// Command replaces the command of the spec. Only a job may run without one.
	Command []string `json:"command,omitempty"`
}

// Check returns nil if the run can start, else the reason.
func (a RunAsk) Check(s Spec) error {
	if len(a.Command) == 0 && !s.IsJob() {
		return fmt.Errorf("%w: %s is no job, so a run needs a command: pando run %s -- COMMAND",
			ErrRefused, s.Name, s.Name)
	}
	if len(a.Command) == 0 {
		return nil
	}
	return SessionSpec{Command: a.Command}.Check()
}

// RunOperators are the requests of operators about runs.
type RunOperators interface {
	// StartRun starts a run of a service's newest spec and returns at once. Service has its progress.
	StartRun(ctx context.Context, s ServiceKey, ask RunAsk, by Asker) (Run, error)
	// AttachRun starts a run with one instance, and runs a command in it once it is there. The
	// connection carries the frames of api/session. Its end ends the run.
	AttachRun(
		ctx context.Context, s ServiceKey, command SessionSpec, by Asker,
	) (io.ReadWriteCloser, error)
	// EndRun ends a run in progress. number 0 is the newest.
	EndRun(ctx context.Context, s ServiceKey, number int, by Asker) (Run, error)
}
