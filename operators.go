package pando

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Operators is every request that people and their programs may make of a cluster. The control room
// implements it and package api serves it over HTTP. The CLI, the dashboard and the SDKs use
// nothing else.
type Operators interface {
	// Deploy makes the spec the newest revision of its service, and creates the service if it is
	// new. A spec equal to the newest one changes nothing. The asker is the operator.
	//
	// Every method that changes a service acts once per Request of its asker, as long as the
	// service keeps the decision. It returns ErrConflict when the asker's Seen is not the service's
	// version.
	Deploy(ctx context.Context, s Spec, by Asker) (ServiceStatus, error)
	// Remove drains and merges every instance, then deletes the service. The state stays unless
	// purge is set.
	Remove(ctx context.Context, s ServiceKey, purge bool, by Asker) error
	// Pin fixes the number of instances for the time keep (0: until Unpin).
	Pin(ctx context.Context, s ServiceKey, instances int, keep time.Duration, by Asker) (ServiceStatus, error)
	Unpin(ctx context.Context, s ServiceKey, by Asker) (ServiceStatus, error)

	Services(ctx context.Context) ([]ServiceStatus, error)
	Service(ctx context.Context, s ServiceKey) (ServiceStatus, error)
	// Why lists intents and decisions of a service, ordered by their newest step, newest last. max
	// 0 returns all.
	Why(ctx context.Context, s ServiceKey, max int) ([]Because, error)
	// Hosts lists every member, present or away.
	Hosts(ctx context.Context) ([]HostStatus, error)
	// RemoveHost ends the membership of a host: its name and slot are free, its certificate is
	// void, and its instances are deleted from the store. ErrRefused: the server runs there.
	// Without force, also: the host is present with instances, or keeps states.
	RemoveHost(ctx context.Context, h HostName, force bool, by Asker) error
	// Watch sends every change to services, instances, intents and decisions after a store revision
	// (0: from now). It ends with ctx. A last change with Err set reports that history is
	// compacted.
	Watch(ctx context.Context, after StoreRevision) <-chan Change

	// Logs reads the logs of instance i. With i "" it reads all logs and prefixes each line with
	// its instance.
	Logs(ctx context.Context, s ServiceKey, i InstanceID, lines int, follow bool) (io.ReadCloser, error)
	Counters(ctx context.Context, s ServiceKey) ([]EndpointCounters, error)
	StateLog(ctx context.Context, s ServiceKey, max int) ([]StateCommit, error)
	// State answers git's read-only smart HTTP protocol below /state/.
	State() http.Handler
}

// ServiceStatus is the output of `pando status NAME -o json`.
type ServiceStatus struct {
	Service
	VIP   string `json:"vip"` // VIP4 as text, for curl
	DNS   string `json:"dns"` // website.pando
	Ports []Port `json:"ports"`
	Scale Scale  `json:"scale"`
	// Spec is the target revision's, with defaults. Only an answer about one service has it.
	Spec       *Spec            `json:"spec,omitempty"`
	InRotation int              `json:"in_rotation"`
	Instances  []InstanceStatus `json:"instances"`
	// Problem is the newest failure that still holds, or the reason why writes fail.
	Problem *Decision     `json:"problem,omitempty"`
	Version StoreRevision `json:"version"` // of the service's record: its ETag
	Seen    StoreRevision `json:"seen"`    // the newest commit in the status: a watch continues here

	// Failures counts the instances that failed since the newest deploy, among the decisions still
	// kept.
	Failures int `json:"failures,omitempty"`

	// Warnings are risks of the spec. Only the answer to a deploy has them.
	Warnings []string `json:"warnings,omitempty"`
}

// InstanceStatus is one line of `pando ps`.
type InstanceStatus struct {
	Instance
	Endpoint string `json:"endpoint"`       // ip:port, "" before it has an address
	Away     string `json:"away,omitempty"` // the host is away: the phase is the last one reported
}

// Because is one entry of `pando why`: an intent or a decision.
type Because struct {
	At       time.Time `json:"at"`
	Intent   *Intent   `json:"intent,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
}

// KindBookmark marks the first event of a watch. The caller has everything up to its revision;
// later changes follow.
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
