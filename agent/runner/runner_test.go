package runner

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/seed"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

var shop = pando.DefaultService("shop")

// countedSweeps counts the sweeps of the connection table.
type countedSweeps struct {
	pando.Steering
	n int
}

func (s *countedSweeps) Sweep(context.Context) (pando.SweepReport, error) {
	s.n++
	return pando.SweepReport{}, nil
}

// idle is a sandbox without flows at its sockets.
type idle struct{ pando.Sandbox }

func (idle) Flows(context.Context) (int, error) { return 0, nil }

// The agent counts the flows of a dying instance in a sweep after its host closed it. The time of
// the drain is on the clock of control, which may be a minute ahead.
func TestADyingInstanceIsSweptOnTheClockOfItsHost(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			counted := &countedSweeps{}
			h := &Host{Clock: sim.Clock{}, Records: records.New(records.Config{}),
				Sweeper: flows.NewSweeper(counted, sim.Clock{}, slog.New(slog.DiscardHandler))}
			e := pando.Endpoints{Balance: pando.Balance{At: pando.AtConnect}}
			h.Records.World.Endpoints[shop] = world.Versioned[pando.Endpoints]{V: e}
			if err := h.Sweeper.Sweep(t.Context(), time.Time{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			dies := &Runner{host: h, Service: shop, ID: "shop-1", box: idle{},
				inst: pando.Instance{Since: time.Now().Add(skew)}}
			dies.leave.closed = time.Now()
			for range 2 { // the second count may share the sweep of the first
				if _, err := dies.countOpenFlows(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if counted.n != 2 {
				t.Errorf("skew %v: %d sweeps, want one before it was closed and one after", skew, counted.n)
			}
		})
	}
}

// taken are the snapshots of a host with one seed.
type taken struct{ pando.Snapshots }

func (taken) Kept(pando.ServiceKey) ([]pando.SealedSnapshot, error) {
	return []pando.SealedSnapshot{{SnapshotStatus: pando.SnapshotStatus{Service: shop, Revision: 2,
		Digest: "sha256:1", Seed: true}}}, nil
}

// An instance that continues a seed and dies before it is ready takes the seed with it.
func TestACopyThatDiesRejectsItsSeed(t *testing.T) {
	h := &Host{Seeds: seed.New(taken{}, slog.New(slog.DiscardHandler))}
	r := &Runner{host: h, Service: shop, inst: pando.Instance{Revision: 2, Phase: pando.PhaseReady}}
	r.start.seeding.seeded = "sha256:1"
	r.rejectSeed("it exited with 1") // it was ready once
	if now, _ := h.Seeds.Find(shop, seed.Version{Number: 2}); now != "sha256:1" {
		t.Errorf("the seed of an instance that was ready is %q", now)
	}
	r.inst.Phase = pando.PhaseStarting
	r.rejectSeed("it exited with 1")
	if now, why := h.Seeds.Find(shop, seed.Version{Number: 2}); now != "" ||
		!strings.Contains(why, "exited with 1") {
		t.Errorf("the seed is %q (%s)", now, why)
	}
}

// A text about many flows names the number, the most silent client and its silence.
func TestTheTextOfAWait(t *testing.T) {
	r := &Runner{host: &Host{Records: records.New(records.Config{})}, Service: shop}
	r.leave.counting.Flows = 7
	all := []pando.Client{{Address: netip.MustParseAddrPort("192.0.2.1:1000"), Protocol: pando.TCP,
		Idle: 27 * time.Minute, Unanswered: 6}}
	for want, clients := range map[string][]pando.Client{
		"waits for 7 connections, the most silent idle 27m, of 192.0.2.1:1000 " +
			"(no answer to 6 probes)": all,
		"waits for 7 flows without a socket": nil,
	} {
		if got := r.waitText(clients); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
