// Package move takes the programs of instances from one host to another one, and into snapshots.
//
// It never gives an instance to another host: control does, while the record has the mark of the
// move.
package move

import (
	"context"
	"log/slog"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/outbound"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/seed"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/supply"
	"pando.run/pando/world"
)

// Host is what moves and snapshots need of their host.
type Host struct {
	Name     pando.HostName
	Records  *records.Records
	Branches *branch.Branches
	Supplier *supply.Supplier
	Seeds    *seed.Store
	Tables   *steer.Queue
	Steering pando.Steering
	Payments *outbound.Payments
	Peers    pando.Peers
	Registry pando.Registry
	Clock    pando.Clock
	Log      *slog.Logger
	// Spawn runs a function until the agent ends.
	Spawn func(func(context.Context))
	Agent Agent
}

// Agent is the view of the agent.
type Agent interface {
	// Runner returns the runner of an instance of this host.
	Runner(i pando.InstanceID) (*runner.Runner, error)
	// Rescope decides whether a service concerns this host. The caller has the world of the records,
	// with their lock.
	Rescope(w *world.World, s pando.ServiceKey)
	// RemoveSandbox removes a sandbox without a record. It tries again until that has succeeded.
	RemoveSandbox(ctx context.Context, box pando.Sandbox)
}
