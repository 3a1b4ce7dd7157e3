package pando

import (
	"context"
	"io"
	"net/http"
)

// Peers connects servers and agents to the agents of all hosts. driver/peer implements it over
// HTTP. Nothing durable goes this way. ErrUnavailable names the host.
type Peers interface {
	// Applied returns once the steering of a host reflects every record of the service up to a
	// store revision.
	Applied(ctx context.Context, h Host, s ServiceKey, at StoreRevision) error
	// Logs streams the last lines of an instance's log, and new lines while follow is set.
	Logs(ctx context.Context, h Host, i InstanceID, lines int, follow bool) (io.ReadCloser, error)
	// Counters returns the counters of a host's steering.
	Counters(ctx context.Context, h Host) ([]EndpointCounters, error)
	// Losses returns the losses of a host's steering.
	Losses(ctx context.Context, h Host) (Losses, error)
	// StateLog returns the newest commits of a service's main branch.
	StateLog(ctx context.Context, h Host, s ServiceKey, max int) ([]StateCommit, error)
	// State serves git's read-only smart HTTP protocol for a service with its objects on host h.
	State(h Host) http.Handler
}

// Decider sends an agent's ask straight to the leader of control. One durable write then holds the
// ask, its answer and the consequences. driver/peer implements it over HTTP.
type Decider interface {
	// Answer returns the records that the answer wrote: of the intent and of its instance. The
	// fence entitles the asking host. Answer calls sent at most once, before it returns. The ask is
	// then on its way, and the caller can only wait.
	//
	// ErrFenced and ErrStoreFull are final. After any other error the ask may or may not be
	// written. The caller then writes the ask itself, on condition that its key does not exist.
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
