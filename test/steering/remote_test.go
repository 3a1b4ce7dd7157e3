package steering

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"pando.run/pando/balance"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/network/ebpf"
)

func openOne(name string, own [2]netip.Addr, uplinks ...string) (Subject, error) {
	d, err := ebpf.Open(ebpf.Config{
		PinDir: pins + name, Uplinks: uplinks, HostAddr: own[0], HostAddr6: own[1],
		Buckets:  balance.Buckets,
		Secret:   []byte("of the cluster"),
		FlowsMax: 1 << 14,
	})
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	return tcx{d}, nil
}

// Mend mends the devices of the driver until ctx ends.
func (s tcx) Mend(ctx context.Context) error {
	return ebpf.Mend(ctx, s.Driver, clock.Clock{}, slog.New(slog.DiscardHandler))
}

func TestRemoteOfEBPF(t *testing.T) { Remote(t, openOne) }

func TestDoorsOfEBPF(t *testing.T) { Doors(t, openOne) }
