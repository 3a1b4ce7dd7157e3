// Package units joins the loop of a group of units (function/group) with its drivers: steering,
// processes, control groups and the control socket. It decides nothing.
package units

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/network/flowlet"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/unit"
	"pando.run/pando/function/group"
)

// Config is the configuration of a group.
type Config struct {
	Name, Tenant string
	Functions    []string        // .wasm files, in the order in which packets pass them
	Flags        []string        // additional arguments of each unit
	In, Out      string          // devices; without Out, packets leave by In
	Least, Most  int             // number of units
	UnitBits     uint64          // capacity of a unit in bits per second
	Limited      bool            // the capacity is also enforced
	Ports        [2]int          // first and last of the numbers that may be leased to flows
	Limits       pando.Resources // limits of each unit's process; 0 = no limit
	Targets      uint32          // K: units that receive a flow's state
	Gap          time.Duration
	// A flow stays on its first unit: the baseline of measurements.
	PerFlow bool
	Log     bool // an output log has the state of each flow after each batch
	// Socket of a Redis that holds the states instead of the units: the baseline of measurements.
	Store           string
	Exchange        string // how units exchange states: "memory" or "udp"
	Chaos           string // LOSS,REPETITION,DISORDER in percent, for tests
	RunDir, DataDir string
	Binary          string // pando-unit
}

// Free returns an error if a running unit or group has the name.
func (c Config) Free() error {
	socket := unit.ControlSocket(c.RunDir, c.Name)
	if _, err := unit.Ask(socket, "status"); err == nil {
		return fmt.Errorf("%w: a unit or group %s runs: "+
			"`pando fn rm %[2]s` ends it, --name gives this one another", pando.ErrExists, c.Name)
	}
	return nil
}

// Run serves until ctx ends or a request asks it to stop. It calls ready once the least number of
// units serves.
func Run(ctx context.Context, c Config, ready func()) error {
	if err := c.Free(); err != nil {
		return err
	}
	steering, err := c.steer()
	if err != nil {
		return err
	}
	units, err := c.start()
	if err != nil {
		return errors.Join(err, steering.Remove())
	}
	g, err := c.group(steering, units)
	if err != nil {
		units.Close()
		return errors.Join(err, steering.Remove())
	}
	control, err := unit.Listen(unit.ControlSocket(c.RunDir, c.Name), g.Answer)
	if err != nil {
		units.Close()
		return errors.Join(err, steering.Remove())
	}
	defer control.Close()
	err = g.Run(ctx, ready)
	if err == nil && ctx.Err() != nil {
		return os.RemoveAll(filepath.Join(c.RunDir, c.Name))
	}
	return err
}

// devices returns the ends of the wire.
func (c Config) devices() []string {
	if c.Out == "" {
		return []string{c.In}
	}
	return []string{c.In, c.Out}
}

// steer begins to steer flowlets. No unit takes them yet.
func (c Config) steer() (*flowlet.Driver, error) {
	rule := flowlet.DefaultRule(c.UnitBits, flowlet.Units)
	rule.Targets, rule.Gap = c.Targets, c.Gap
	if c.PerFlow {
		rule.Gap, rule.SizeBytes = 1<<62, 0
	}
	return flowlet.Open(flowlet.Config{Device: c.In, Out: c.Out, Rule: rule})
}

// start makes the resources that the units share. No unit runs yet.
func (c Config) start() (*unit.Driver, error) {
	var groups pando.Cgroups
	if c.Limits != (pando.Resources{}) {
		found, err := cgroup.Open(cgroup.Root)
		if err != nil {
			return nil, err
		}
		groups = found
	}
	return unit.Open(unit.Config{
		Name: c.Name, Tenant: c.Tenant, Functions: c.Functions, Flags: c.Flags, Devices: c.devices(),
		HeaderBytes: flowlet.HeaderBytes, UnitBits: c.UnitBits, Limited: c.Limited, Ports: c.Ports,
		Limits: c.Limits, Gap: c.Gap, OutputLog: c.Log, Store: c.Store, Exchange: c.Exchange,
		Chaos: c.Chaos, RunDir: c.RunDir, DataDir: c.DataDir, Binary: c.Binary,
		Cgroups: groups, CgroupRoot: cgroup.Root, Clock: clock.Clock{}, Log: os.Stderr,
	})
}

// group returns the loop over the drivers.
func (c Config) group(steering *flowlet.Driver, units *unit.Driver) (*group.Group, error) {
	return group.New(group.Config{
		Name: c.Name, Tenant: c.Tenant, PID: os.Getpid(), Devices: c.devices(), Limits: c.Limits,
		Least: c.Least, Most: c.Most, UnitBits: c.UnitBits, OutputLog: c.Log,
		Flowlets: steering, Units: units, Memory: units.Memory(),
		Clock: clock.Clock{}, Log: os.Stderr,
	})
}
