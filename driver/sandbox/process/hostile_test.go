package process

import (
	"context"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

func TestAnAgentLearnsOfAnExitThatItMissed(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sh", "-c", "echo last words; exit 3")
	exited(t, b)
	b.(*sandbox).close() // the agent is gone, and a new one starts
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	if e := exited(t, found[0]); e.Code != 3 || len(e.LastLines) != 1 ||
		e.LastLines[0] != "last words" {
		t.Fatalf("exit %+v", e)
	}
}

func TestForkBombStaysInItsLimitAndEnds(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.Resources.PIDs = 20
	}, "sh", "-c", "while :; do sleep 100 & done")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exited(t, b) // the shell ends at its limit; its children live
	if u, err := b.Usage(ctx); err != nil || u.PIDs < 10 || u.PIDs > 20 {
		t.Fatalf("%+v, %v", u, err)
	}
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestOutOfMemoryIsTold(t *testing.T) {
	hungry := "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.Resources.MemoryBytes = 8 << 20
	}, "sh", "-c", hungry)
	if e := exited(t, b); !e.OOMKilled || !strings.Contains(e.Signal, "KILL") {
		t.Fatalf("exit %+v", e)
	}
}
