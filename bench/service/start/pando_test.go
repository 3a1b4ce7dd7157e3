//go:build bench

package start

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/process"
)

// oneLayer is a store with one image of one layer, the folder of the program.
type oneLayer struct{ pando.Images }

func (oneLayer) Root(string, string) (pando.ImageRoot, error) {
	return pando.ImageRoot{Layers: []string{layer}, UID: 1234, GID: 1234}, nil
}

// layer is the folder of the program, below the folder of all layers.
const layer = "layer"

// sandboxes measures the process driver, with or without ready sandboxes, and with the program of
// the host or of an image.
func sandboxes(t *testing.T, s samples, round int, program string, pool int, inImage bool) {
	t.Helper()
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := pando.InstanceRange(1001)
	dir := t.TempDir()
	d, err := process.New(process.Config{
		Host: pando.HostName(fmt.Sprintf("bench%d", os.Getpid())), RunDir: filepath.Join(dir, "run"),
		LogDir: filepath.Join(dir, "log"),
		Self:   []string{"/proc/self/exe"}, Prefix4: v4, Prefix6: v6, Pool: pool, Cgroups: groups,
		Groups: cgroup.Root, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		Images: oneLayer{}, Layers: filepath.Dir(filepath.Dir(program)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(d.Close(), d.Purge(context.Background())); err != nil {
			t.Error(err)
		}
	}()
	spec := pando.Spec{Name: "echo", Command: []string{program}, WorkingDir: filepath.Dir(program),
		Resources: pando.Resources{MemoryBytes: 128 << 20}}.WithDefaults()
	if inImage {
		spec.Command, spec.WorkingDir = []string{"/" + filepath.Base(program)}, "/"
		spec.Image = pando.Image{Reference: "echo", Digest: "sha256:0"}
	}
	for n := range each {
		awaitReady(t, filepath.Join(dir, "run"), pool)
		begin := time.Now()
		b, err := d.Start(t.Context(), pando.SandboxSpec{
			Instance: pando.Instance{ID: pando.InstanceID(fmt.Sprintf("echo-%d", n)), Service: spec.Key()},
			Spec:     spec, VIP4: netip.MustParseAddr("10.127.0.9"),
		})
		if err != nil {
			t.Fatal(err)
		}
		at := b.Link().IP4.String() + ":8080"
		firstByte(t, at)
		took := time.Since(begin)
		switch {
		case inImage:
			s.add(imaged, round, took)
		case pool == 0:
			s.add(cold, round, took)
		default:
			s.add(pooled, round, took)
			if err := b.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			if err := b.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			firstByte(t, at)
			s.add(resumed, round, time.Since(begin))
		}
		begin = time.Now()
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if pool > 0 && !inImage {
			s.add(removed, round, time.Since(begin))
		}
	}
}

// awaitReady waits until the wanted number of sandboxes wait for a program.
func awaitReady(t *testing.T, run string, wanted int) {
	t.Helper()
	ready := 0
	for end := time.Now().Add(patience); time.Now().Before(end); pause(t, time.Millisecond) {
		files, err := filepath.Glob(filepath.Join(run, "*", "slot.json"))
		if err != nil {
			t.Fatal(err)
		}
		ready = 0
		for _, f := range files {
			var slot struct{ Instance string }
			b, err := os.ReadFile(f)
			if err == nil && json.Unmarshal(b, &slot) == nil && slot.Instance == "" {
				ready++
			}
		}
		if ready >= wanted {
			return
		}
	}
	t.Fatalf("%d sandboxes are ready, want %d", ready, wanted)
}
