package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// An hour of a host takes no time. An instance serves a flow, crashes within the hour, and its exit
// is a crash.
func TestAnInstanceLivesAndCrashesInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steering := NewSteering()
		program := func(ctx context.Context, _ *Sandbox) int { <-ctx.Done(); return 0 }
		host := NewSandboxes(7, program, 100*time.Millisecond, time.Hour, steering)
		web := pando.Instance{ID: "web-1", Service: pando.DefaultService("web")}
		box, err := host.Start(t.Context(), pando.SandboxSpec{Instance: web})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := host.Start(t.Context(),
			pando.SandboxSpec{Instance: web}); !errors.Is(err, pando.ErrExists) {
			t.Errorf("started twice: %v", err)
		}
		table := pando.SteeringTable{Service: web.Service,
			Endpoints: []pando.Endpoint{{Instance: "web-1", Weight: 100}, {Instance: "web-2", Weight: 0}}}
		if err := steering.Publish(t.Context(), table); err != nil {
			t.Fatal(err)
		}
		if i, ok := steering.Open(web.Service); !ok || i != "web-1" {
			t.Errorf("the flow went to %q", i)
		}
		if n, err := box.Flows(t.Context()); err != nil || n != 1 {
			t.Errorf("%d flows, %v", n, err)
		}
		born := time.Now()
		e := <-box.Events()
		if e.Kind != pando.SandboxExited || e.Exit.Signal != "SIGSEGV" || time.Since(born) > time.Hour {
			t.Errorf("after %v: %+v; want a crash within the hour", time.Since(born), e)
		}
		table.Endpoints = nil
		if err := steering.Publish(t.Context(), table); err != nil || steering.Broken() != 1 {
			t.Errorf("%d flows broken, %v; want the one that was open", steering.Broken(), err)
		}
		if err := box.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := host.Attach(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("%d left, %v", len(left), err)
		}
	})
}
