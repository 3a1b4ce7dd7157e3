package pando

import (
	"context"
	"io"
	"net/http"
)

// Peers is how servers and agents reach the agents of other hosts (and their own). driver/peer implements it over HTTP.
// Nothing durable goes this way. Errors: ErrUnavailable names the host.
type Peers interface {
	// Applied returns once the steering of a host reflects every record of the service up to a store revision.
	Applied(ctx context.Context, h Host, s ServiceKey, at StoreRevision) error
	// Logs streams the log of an instance, from its last lines on, and goes on while follow is set.
	Logs(ctx context.Context, h Host, i InstanceID, lines int, follow bool) (io.ReadCloser, error)
	// Counters of a host's steering.
	Counters(ctx context.Context, h Host) ([]EndpointCounters, error)
	// Losses of a host's steering.
	Losses(ctx context.Context, h Host) (Losses, error)
	// StateLog returns the newest commits of a service's main branch.
	StateLog(ctx context.Context, h Host, s ServiceKey, max int) ([]StateCommit, error)
	// State serves git's read-only smart HTTP protocol for a service whose objects are on this host.
	State(h Host) http.Handler
}

// Decider is how an agent has the control that leads answer an ask that is not in the store yet, so that one durable write
// holds the ask, its answer and what follows from it. driver/peer implements it over HTTP.
type Decider interface {
	// Answer returns the records that the answer has written: of the intent, and of the instance that it is about. by entitles
	// the asking host. ErrFenced and ErrStoreFull are final. After any other error it is not known whether something was
	// written; who then writes the ask by itself, on condition that its key does not exist, finds out. sent is called at most
	// once, before Answer returns, when the ask is on its way and nothing is left to do but to wait.
	Answer(ctx context.Context, by Fence, ask Intent, sent func()) ([]Record, error)
}

// StateCommit is one line of `pando state log`.
type StateCommit struct {
	Commit    ObjectID   `json:"commit"`
	Parents   []ObjectID `json:"parents"`
	Instance  InstanceID `json:"instance"` // its author
	Message   string     `json:"message"`
	At        int64      `json:"at"` // Unix seconds
	Conflicts []string   `json:"conflicts,omitempty"`
}
