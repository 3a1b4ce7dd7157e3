package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/ebpf"
	"pando.run/pando/driver/ovs"
	"pando.run/pando/driver/wall"
)

// The values of --steer.
const (
	steerEBPF  = "ebpf"
	steerOVS   = "ovs"
	steerGroup = "ovs-group"
)

// checkSteer refuses an unknown way of steering, and one that this host lacks.
func checkSteer(p place) error {
	switch p.Steer {
	case "", steerEBPF:
		return nil
	case steerOVS, steerGroup:
		if p.Join != "" {
			return cli.Usagef("--steer %s: Open vSwitch steers one host; leave --join out, or steer by %s",
				p.Steer, steerEBPF)
		}
		if err := ovs.Missing(p.OVS); err != nil {
			return fmt.Errorf("--steer %s: %w", p.Steer, err)
		}
		return nil
	}
	return cli.Usagef("--steer %s: it is %s, %s or %s", p.Steer, steerEBPF, steerOVS, steerGroup)
}

// steering is a driver of packets with the jobs of its host.
type steering struct {
	pando.Steering
	Prepare func(pando.Link) error // the link of a sandbox without an instance
	Close   func() error
	book    pando.FlowBook
	mending func(*slog.Logger) job // keeps its devices and rules
}

// switched returns the folder with the records of driver/ovs.
func switched(p place) string { return filepath.Join(p.Run, "ovs") }

func openSteering(ctx context.Context, p place) (steering, error) {
	addr, _ := netip.ParseAddr(p.Address)
	addr6, _ := netip.ParseAddr(p.address6)
	config := ebpf.Config{
		PinDir: p.pins(), Settings: p.settingsFile(), Uplinks: p.Uplinks, HostAddr: addr,
		HostAddr6: addr6, Buckets: balance.Buckets,
	}
	if p.Steer == steerOVS || p.Steer == steerGroup {
		mode := map[string]ovs.Mode{steerOVS: ovs.Learn, steerGroup: ovs.Group}[p.Steer]
		d, err := ovs.Open(ctx, ovs.Config{
			RunDir: p.OVS, StateDir: switched(p), PinDir: p.pins() + "-ovs", Mode: mode,
			Stack: ebpf.Stack{Config: config},
		})
		if err != nil {
			return steering{}, err
		}
		mend := func(log *slog.Logger) job {
			return func(ctx context.Context) error { return d.Mend(ctx, wall.Clock{}, log) }
		}
		return steering{d, d.Prepare, func() error { return nil }, alone{}, mend}, nil
	}
	d, err := ebpf.Open(config)
	if err != nil {
		return steering{}, err
	}
	mend := func(log *slog.Logger) job {
		return func(ctx context.Context) error { return ebpf.Mend(ctx, d, wall.Clock{}, log) }
	}
	return steering{d, d.Prepare, d.Close, d, mend}, nil
}

// alone is the book of flows of a host without others (driver/ovs).
type alone struct{}

// OpenFlows returns none: no other host asks.
func (alone) OpenFlows(context.Context, pando.Shares) ([]pando.InstanceFlows, error) {
	return nil, nil
}

// LearnFlows adds none: no other host has a flow.
func (alone) LearnFlows(context.Context, []pando.InstanceFlows) (int, error) { return 0, nil }
