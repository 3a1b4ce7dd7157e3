package pando

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestABookKeepsTheNewestRuns(t *testing.T) {
	var b *RunBook
	if b.Active() != 0 || b.Find(1) != -1 || b.Uses(1) {
		t.Error("no book has runs")
	}
	first := b.With(Run{Revision: 7})
	if r, ok := first.Newest(); !ok || r.Number != 1 || !r.Active() || !first.Uses(7) {
		t.Errorf("%+v", r)
	}
	b = first
	for range RunsKept + 5 {
		b = b.With(Run{})
		at := b.Find(b.Last)
		b.Runs[at] = b.Runs[at].End(RunFailed, time.Time{}, "so")
	}
	if b = b.With(Run{}); len(b.Runs) != RunsKept+2 || b.Runs[0].Number != 1 || b.Last != RunsKept+7 {
		t.Errorf("%d runs, the first is %d of %d", len(b.Runs), b.Runs[0].Number, b.Last)
	}
	if len(first.Runs) != 1 {
		t.Error("a book changed with a later one")
	}
}

func TestTheSpecOfARunServesNothing(t *testing.T) {
	s := Spec{Name: "web", Entrypoint: []string{"/start"}, Command: []string{"serve"},
		Ports:   []Port{{Published: 80, Target: 8080, Protocol: TCP}},
		Health:  Health{Live: Probe{Kind: ProbeTCP}},
		Volumes: []Volume{{Name: "data", Path: "/data"}}}
	r := s.ForRun(RunPart{Number: 1, Command: []string{"migrate"}, Beside: true})
	if len(r.Ports) > 0 || r.Health.Live.Kind != "" || !r.Volumes[0].ReadOnly ||
		!reflect.DeepEqual(r.Argv(), []string{"migrate"}) {
		t.Errorf("%+v", r)
	}
	if s.Volumes[0].ReadOnly {
		t.Error("the spec of the service changed")
	}
	if r = s.ForRun(RunPart{Number: 1}); r.Volumes[0].ReadOnly || len(r.Argv()) != 2 {
		t.Errorf("%+v", r)
	}
	if err := (RunAsk{}).Check(s); !errors.Is(err, ErrRefused) {
		t.Errorf("a run of a service without a command: %v", err)
	}
	s.Kind = KindJob
	if err := (RunAsk{}).Check(s); err != nil {
		t.Errorf("a run of a job: %v", err)
	}
	if err := (RunAsk{Command: []string{"a\x00"}}).Check(s); !errors.Is(err, ErrInvalid) {
		t.Errorf("a NUL byte: %v", err)
	}
}

func TestTheSpecOfOneRunServesNothing(t *testing.T) {
	s := Spec{Name: "web", Tenant: "shop", Kind: KindJob, Job: Job{Schedule: "* * * * *", Parallel: 4},
		Command: []string{"serve"}, Environment: map[string]string{"A": "b"},
		Ports: []Port{{Published: 80}}, Restart: RestartAlways, Scale: Scale{Min: 3, Max: 9, Warm: 2},
		Volumes: []Volume{{Name: "data"}}, State: map[string]StateType{"n": "counter"},
		StateCopies: 2, DrainSecondsMax: 5, Labels: map[string]string{"team": "shop"}}
	got, err := s.Once("web-run-1")
	want := Spec{Name: "web-run-1", Tenant: "shop", Kind: KindJob, Job: Job{Schedule: rarely},
		Command: s.Command, Environment: s.Environment, Volumes: s.Volumes,
		Labels: map[string]string{"team": "shop", OnceLabel: "yes"}}
	if s.IsOnce() || !got.IsOnce() || len(s.Labels) != 1 {
		t.Errorf("the labels of a run are %v, of its spec %v", s.Labels, got.Labels)
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if full := got.WithDefaults(); full.Scale.Min != 0 || full.Scale.Max != 1 || full.Scale.Warm != 0 {
		t.Errorf("it scales: %+v", full.Scale)
	}
	for _, s := range []Spec{{Kind: KindVM}, {Kind: Stateful}, {Endpoints: make([]External, 1)}} {
		if _, err := s.Once("x"); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
