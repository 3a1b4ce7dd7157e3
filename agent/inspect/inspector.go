// Package inspect shows operators the instances of one host: their logs, their use, their volumes
// and their inside.
//
// It never changes an instance. A session in one may, as its caller wants.
package inspect

import (
	"context"
	"log/slog"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/meter"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/steer"
)

// Inspector shows the instances of one host.
type Inspector struct {
	Host    pando.HostName
	Version string
	Records *records.Records
	Tables  *steer.Queue
	Sweeper *flows.Sweeper
	Meter   *meter.Meter
	Tally   *runner.Tally

	Steering pando.Steering
	Kept     pando.Volumes // nil: no service of this host has a volume
	// OpenLog returns lines of an instance that runs or is gone.
	OpenLog func(
		ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
	) (pando.LogLines, error)
	// Traffic returns the bytes that a device of this host has sent and received. Nil: unknown.
	Traffic func(device string) (sent, received uint64)
	// Queues returns the queues of the devices of this host, by name. Nil: unknown. Uplinks names
	// those to report.
	Queues  func() (map[string]pando.LinkQueue, error)
	Uplinks []string
	// Logged returns the counts of this process's log. Nil: they are 0.
	Logged func() pando.LogFigures
	Clock  pando.Clock
	Log    *slog.Logger
	Agent  Agent

	sessions *sessions
	room     logRoom
}

// Agent is the view of the agent.
type Agent interface {
	// Runner returns the runner of an instance of this host.
	Runner(i pando.InstanceID) (*runner.Runner, error)
	// Runners returns all runners, sorted by instance name.
	Runners() []*runner.Runner
	// Losses returns the losses of this host.
	Losses(ctx context.Context) (pando.Losses, error)
	// LeasesLost returns how often the host's lease was lost.
	LeasesLost() uint64
	// Shares returns the number of shares of VIPs that this host holds.
	Shares() int
}

var _ pando.HostReporter = (*Inspector)(nil)

// New returns an inspector with the fields of w.
func New(w Inspector) *Inspector {
	w.sessions, w.room = newSessions(), newLogRoom()
	return &w
}

// metricsOf returns the newest numbers of the application of an instance.
func (w *Inspector) metricsOf(i pando.InstanceID) map[string]float64 {
	r, err := w.Agent.Runner(i)
	if err != nil {
		return nil
	}
	return r.Caller.Metrics()
}
