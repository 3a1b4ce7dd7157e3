package self

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/driver/sim"
	"pando.run/pando/scale"
)

var web = pando.DefaultService("web")

// oneRunner is an agent with one instance.
type oneRunner struct {
	Agent
	r *runner.Runner
}

func (o oneRunner) Runner(pando.InstanceID) (*runner.Runner, error) { return o.r, nil }

// crowded is a control that refuses every ask.
type crowded struct{}

func (crowded) Answer(
	context.Context, pando.Fence, pando.Intent, func(),
) ([]pando.Record, error) {
	return nil, fmt.Errorf("ask %w: too many wait", pando.ErrRefused)
}

// A service that asks without end is refused with the next step, and no record is written. So is an
// ask that control refuses: the agent does not write it in control's place.
func TestAsksBeyondTheRateOfAServiceAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, clock := sim.NewRegistry(1, 0), sim.Clock{}
		known := records.New(records.Config{Host: "h1", Registry: registry, Clock: clock, IDs: &sim.IDs{},
			Log: slog.New(slog.DiscardHandler)})
		h := &runner.Host{Name: "h1", Clock: clock, IDs: &sim.IDs{}, Records: known}
		r := runner.New(h, pando.Instance{ID: "web-1", Service: web}, nil, 0)
		api := &API{Host: "h1", Records: known, Clock: clock, IDs: &sim.IDs{}, Agent: oneRunner{r: r}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused := func(want string) {
			t.Helper()
			_, err := api.Replicate(ctx, "web-1", pando.Ask{})
			asks, errRead := registry.Snapshot(ctx, pando.KindIntent.Under())
			if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), want) ||
				errRead != nil || len(asks.Records) > 0 {
				t.Errorf("want %q: %v, %d asks are written (%v)", want, err, len(asks.Records), errRead)
			}
		}
		for range scale.AsksBurst {
			if err := api.door.admit(web, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		refused("ask again in a second")
		time.Sleep(100 * time.Millisecond)
		api.Control = crowded{}
		refused("too many wait")
	})
}
