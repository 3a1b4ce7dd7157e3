package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
)

// Every way to start takes the steps of supply. A sandbox is made at one place.
func TestOnlyASuppliedStartMakesASandbox(t *testing.T) {
	var at []string
	for _, file := range sourcesOf(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "Sandboxes.Start("); n > 0 {
			at = append(at, file)
		}
	}
	if len(at) != 1 || at[0] != "supply/supply.go" {
		t.Errorf("%v make sandboxes", at)
	}
}

// sourcesOf returns the files of the agent and of its rooms, without tests.
func sourcesOf(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	rooms, errRooms := filepath.Glob("*/*.go")
	if err := errors.Join(err, errRooms); err != nil || len(rooms) == 0 {
		t.Fatal("the sources are not here: ", err)
	}
	return slices.DeleteFunc(append(files, rooms...), func(file string) bool {
		return strings.HasSuffix(file, "_test.go")
	})
}

// moved is an arrival of an instance with a bundle, from host h2.
func (b *bench) expectMoved(id string) pando.Move {
	b.Helper()
	b.agent.supplier.Snapshots = &nursery{Sandboxes: b.sandboxes}
	spec := pando.Spec{Name: "web", Command: []string{"web"},
		Bundle: pando.Bundle{Folder: "/srv/site", Digest: "sha256:1"}}
	m := pando.Move{MoveMark: pando.MoveMark{ID: id, From: "h2"}, Spec: spec.WithDefaults(),
		Instance: pando.Instance{ID: pando.InstanceID("web-" + id), Service: web, Host: "h2"},
		To:       pando.Host{Name: "h1"}}
	b.ok(b.agent.arrivals.Expect(b.ctx, m))
	return m
}

// An instance that comes from another host finds its bundle on its new host, as one that starts
// there. A bundle that cannot be had refuses the move, with the cause.
func TestAnInstanceThatMovesFindsItsBundle(t *testing.T) {
	onBench(t, func(b *bench) {
		images := &slowImages{end: make(chan error)}
		b.agent.supplier.Images = images
		b.expectMoved("1")
		carried := make(chan error, 1)
		carry := func(id string) {
			_, err := b.agent.arrivals.Carry(b.ctx, "h2", id, strings.NewReader("program"))
			carried <- err
		}
		go carry("1")
		b.pass(time.Second)
		if n := len(b.sandboxes.All()); n > 0 || images.pulls != 1 {
			t.Fatalf("%d sandboxes and %d pulls before its bundle is here", n, images.pulls)
		}
		images.end <- nil
		b.pass(5 * time.Second)
		if err := <-carried; err != nil && !errors.Is(err, pando.ErrNotReady) {
			t.Error(err)
		}
		if all := b.sandboxes.All(); len(all) != 1 || all[0].Spec.Instance.Move == nil {
			t.Errorf("its sandboxes: %v", all)
		}
		images.here = false
		b.expectMoved("2")
		go carry("2")
		synctest.Wait()
		images.end <- errors.New("no host has it")
		synctest.Wait()
		if err := <-carried; err == nil || !strings.Contains(err.Error(), "no host has it") {
			t.Errorf("without its bundle: %v", err)
		}
	})
}

// A program of which nothing comes is given up, so that it bars no other move. One move is expected
// once.
func TestAnArrivalThatSticksIsGivenUp(t *testing.T) {
	onBench(t, func(b *bench) {
		b.agent.supplier.Images = &slowImages{here: true}
		m := b.expectMoved("1")
		if err := b.agent.arrivals.Expect(b.ctx, m); !errors.Is(err, pando.ErrConflict) {
			t.Errorf("the same move again: %v", err)
		}
		real := b.agent.supplier.Sandboxes
		b.agent.supplier.Sandboxes = stuck{real}
		program, w := io.Pipe()
		defer w.Close()
		carried := make(chan error, 1)
		go func() {
			_, err := b.agent.arrivals.Carry(b.ctx, "h2", "1", program)
			carried <- err
		}()
		b.pass(5*time.Minute + 2*time.Second)
		select {
		case err := <-carried:
			if err == nil {
				t.Error("it has come")
			}
		default:
			t.Fatal("its host waits for ever")
		}
		b.agent.records.Lock()
		defer b.agent.records.Unlock()
		if n := len(b.agent.arrivals.Services(nil)); n > 0 {
			t.Errorf("%d arrivals are left", n)
		}
	})
}

// stuck reads a program until its end before it starts it.
type stuck struct{ pando.Sandboxes }

func (s stuck) Start(_ context.Context, spec pando.SandboxSpec) (pando.Sandbox, error) {
	_, err := io.Copy(io.Discard, spec.Arrives)
	return nil, err
}

// A secret that is missing is waited for, with its name, and the start goes on once it is there.
func TestAStartWaitsForAMissingSecret(t *testing.T) {
	onBench(t, func(b *bench) {
		var there atomic.Bool
		b.agent.supplier.Secrets = func(context.Context, pando.InstanceID) (map[string][]byte, error) {
			if !there.Load() {
				return nil, errors.Join(pando.ErrNotFound, errors.New("secret key"))
			}
			return map[string][]byte{"key": []byte("x")}, nil
		}
		spec := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: 1, Max: 3},
			StoredSecrets: []pando.StoredSecret{{Name: "key"}}}
		b.put(pando.Revision{Service: web, Number: 2, Spec: spec.WithDefaults(),
			State: pando.RevisionCurrent})
		b.place("web-1", 2)
		b.pass(time.Second)
		if i := b.world().Instances["web-1"].V; i.Phase != pando.PhasePlaced ||
			!strings.Contains(i.Reason, "it waits for a secret") {
			t.Errorf("without the secret it is %s: %s", i.Phase, i.Reason)
		}
		there.Store(true)
		b.pass(2 * runner.RetryWaitMax)
		if i := b.world().Instances["web-1"].V; i.Phase != pando.PhaseStarting {
			t.Errorf("with the secret it is %s: %s", i.Phase, i.Reason)
		}
	})
}
