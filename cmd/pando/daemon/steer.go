package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/firewall"
	"pando.run/pando/driver/network/front"
	"pando.run/pando/driver/network/ovs"
	"pando.run/pando/edge"
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
	Flows   edge.FlowBook          // nil: a host that takes over a VIP learns no flows
	Prepare func(pando.Link) error // the link of a sandbox without an instance
	Close   func() error
	Path    func(ifindex int) pando.PathUse // nil: not known
	mending func(*slog.Logger) job          // keeps its devices and rules
}

// switched returns the folder with the records of driver/network/ovs.
func switched(p place) string { return filepath.Join(p.Run, "ovs") }

// openSteering opens the steering. The secret is the same on all hosts, so that all choose the same
// instances by hash.
func openSteering(ctx context.Context, p place, secret []byte) (steering, error) {
	addr, _ := netip.ParseAddr(p.Address)
	addr6, _ := netip.ParseAddr(p.address6)
	config := ebpf.Config{
		PinDir: p.pins(), Settings: p.settingsFile(), Uplinks: p.Uplinks, HostAddr: addr,
		HostAddr6: addr6, Slot: p.Slot, Buckets: balance.Buckets, Secret: secret,
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
			return func(ctx context.Context) error { return d.Mend(ctx, clock.Clock{}, log) }
		}
		return steering{d, nil, d.Prepare, func() error { return nil }, nil, mend}, nil
	}
	d, err := ebpf.Open(config)
	if err != nil {
		return steering{}, err
	}
	mend := func(log *slog.Logger) job {
		return func(ctx context.Context) error { return ebpf.Mend(ctx, d, clock.Clock{}, log) }
	}
	return steering{d, d, d.Prepare, d.Close, d.Path, mend}, nil
}

// frontPins returns the folder of the pins of driver/network/front.
func frontPins(p place) string { return filepath.Join(p.pins(), "front") }

// openWays opens the steering behind the walls of instances and the host's own address.
func openWays(ctx context.Context, p place, secret []byte, log *slog.Logger) (steering, error) {
	inner, err := openSteering(ctx, p, secret)
	if err != nil {
		return steering{}, err
	}
	walls, err := firewall.Open(inner, filepath.Join(p.pins(), "reach"))
	if err != nil {
		return steering{}, errors.Join(err, inner.Close())
	}
	out := inner
	out.Steering = walls
	out.Prepare = func(l pando.Link) error { return errors.Join(walls.Prepare(l), inner.Prepare(l)) }
	out.Close = func() error { return errors.Join(walls.Close(), inner.Close()) }
	h := p.record()
	if !h.Fronts {
		return out, nil
	}
	f, err := front.Open(walls, front.Config{
		Pins: frontPins(p), Uplinks: p.Uplinks, Slot: h.Slot, Own4: h.Address, Own6: h.Address6,
	})
	if err != nil {
		return steering{}, errors.Join(err, out.Close())
	}
	if err := f.ServeLocal(); err != nil {
		log.Warn("programs of this host reach services by VIPs alone, not by localhost", "error", err)
	}
	out.Steering = f
	out.Close = func() error { return errors.Join(f.Close(), walls.Close(), inner.Close()) }
	return out, nil
}
