package pando

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Operators is what people and their programs may ask of a cluster. The control room implements it; package api serves
// it over HTTP; the CLI, the dashboard and the SDKs use nothing else.
type Operators interface {
	// Deploy makes the spec the newest revision of its service, and creates the service if it is new. A spec equal to the
	// newest one changes nothing. by names the operator. Everything that changes a service is done once per by.Request, for
	// as long as the service keeps the decision, and is refused with ErrConflict when by.Seen is not the service's version.
	Deploy(ctx context.Context, s Spec, by Asker) (ServiceStatus, error)
	// Remove lets every instance drain and merge, then forgets the service; its state stays unless purge is set.
	Remove(ctx context.Context, s ServiceKey, purge bool, by Asker) error
	// Pin fixes the number of instances for a while (0: until Unpin).
	Pin(ctx context.Context, s ServiceKey, instances int, keep time.Duration, by Asker) (ServiceStatus, error)
	Unpin(ctx context.Context, s ServiceKey, by Asker) (ServiceStatus, error)

	Services(ctx context.Context) ([]ServiceStatus, error)
	Service(ctx context.Context, s ServiceKey) (ServiceStatus, error)
	// Why lists intents and decisions of a service in the order of their newest step, newest last; max 0 is all that is kept.
	Why(ctx context.Context, s ServiceKey, max int) ([]Because, error)
	// Hosts lists every member, also those that are away.
	Hosts(ctx context.Context) ([]HostStatus, error)
	// Watch sends a change for everything that happens to services, instances, intents and decisions, from a store revision on
	// (0: from now). It ends with ctx; a last change with Err set says that history is compacted.
	Watch(ctx context.Context, after StoreRevision) <-chan Change

	Logs(ctx context.Context, s ServiceKey, i InstanceID, lines int, follow bool) (io.ReadCloser, error) // i "": all, each line with its instance
	Counters(ctx context.Context, s ServiceKey) ([]EndpointCounters, error)
	StateLog(ctx context.Context, s ServiceKey, max int) ([]StateCommit, error)
	// State answers git's read-only smart HTTP protocol below /state/.
	State() http.Handler
}

// ServiceStatus is what `pando status NAME -o json` shows.
type ServiceStatus struct {
	Service
	VIP        string           `json:"vip"` // VIP4 as text: what one types into curl
	DNS        string           `json:"dns"` // website.pando
	Ports      []Port           `json:"ports"`
	Scale      Scale            `json:"scale"`
	Spec       *Spec            `json:"spec,omitempty"` // of the target revision, with defaults; in an answer about one service
	InRotation int              `json:"in_rotation"`
	Instances  []InstanceStatus `json:"instances"`
	Problem    *Decision        `json:"problem,omitempty"` // the newest failure that is not yet overcome, or why nothing can be written
	Version    StoreRevision    `json:"version"`           // of the service's record: its ETag
	Seen       StoreRevision    `json:"seen"`              // the newest commit that the status reflects: a watch goes on from here

	// Warnings are risks of the spec, in the answer to a deploy.
	Warnings []string `json:"warnings,omitempty"`
}

// InstanceStatus is one line of `pando ps`.
type InstanceStatus struct {
	Instance
	Endpoint string `json:"endpoint"`       // ip:port, "" before it has an address
	Away     string `json:"away,omitempty"` // its host is: the phase is the last that was heard
}

// Because is one answer of `pando why`: an intent or a decision.
type Because struct {
	At       time.Time `json:"at"`
	Intent   *Intent   `json:"intent,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
}

// KindBookmark is no record's: the first event of every watch has it. All that came up to its revision is known to whoever
// asked, and everything later follows.
const KindBookmark Kind = "bookmark"

// Change is one event of a watch.
type Change struct {
	Revision StoreRevision `json:"revision"`
	Kind     Kind          `json:"kind"`
	Key      Key           `json:"key"`
	Deleted  bool          `json:"deleted,omitempty"`
	More     bool          `json:"more,omitempty"`  // further changes of the same commit follow
	Value    any           `json:"value,omitempty"` // Service, Instance, Intent or Decision
	Err      error         `json:"-"`
}
