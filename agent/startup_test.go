package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
)

// slowly answers the startup probe, which is tcp, from a time on, and counts the questions of each
// kind.
type slowly struct {
	mu    sync.Mutex
	from  time.Time
	asked map[pando.ProbeKind]int
}

func (s *slowly) Probe(ctx context.Context, p pando.Probe, _ pando.Sandbox, _ pando.Port) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[p.Kind]++
	if until, ok := ctx.Deadline(); !ok || time.Until(until) > 2*time.Second {
		return errors.New("the probe has no time limit of its own")
	}
	if p.Kind == pando.ProbeTCP && time.Now().Before(s.from) {
		return errors.New("connection refused")
	}
	return nil
}

// count returns how often probes of a kind were asked.
func (s *slowly) count(k pando.ProbeKind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[k]
}

// starts places an instance with a startup probe that succeeds after a time.
func (b *bench) starts(after time.Duration, h pando.Health) *slowly {
	b.Helper()
	s := &slowly{asked: map[pando.ProbeKind]int{}}
	b.prober = s
	b.restart()
	s.from = time.Now().Add(after)
	spec := pando.Spec{Name: "web", Command: []string{"web"}, Health: h}
	b.put(pando.Revision{
		Service: web, Number: 2, Spec: spec.WithDefaults(), State: pando.RevisionCurrent,
	})
	b.place("web-1", 2)
	return s
}

// reasons returns the reasons of all decisions, one a line.
func (b *bench) reasons() (out string) {
	for _, d := range b.world().DecisionsOf(web) {
		out += d.Reason + "\n"
	}
	return out
}

// The time of readiness begins once the startup probe has succeeded. A slow start outlives
// ready_within, and neither the ready probe nor the live probe is asked before.
func TestAStartupProbeComesBeforeTheOthers(t *testing.T) {
	onBench(t, func(b *bench) {
		s := b.starts(time.Minute, pando.Health{
			Startup: pando.Startup{
				Probe: pando.Probe{Kind: pando.ProbeTCP}, IntervalSeconds: 5, TimeoutSeconds: 2,
			},
			Ready: pando.Probe{Kind: pando.ProbeHTTP}, Live: pando.Probe{Kind: pando.ProbeGRPC},
			ReadySecondsMax: 3,
		})
		b.pass(50 * time.Second)
		b.phase("web-1", pando.PhaseStarting)
		if n := s.count(pando.ProbeHTTP) + s.count(pando.ProbeGRPC); n > 0 {
			t.Errorf("other probes are asked %d times before the start is over", n)
		}
		// The wait doubles from 1 ms to 5 s: 13 questions in the first 8 s, then one every 5 s.
		if n := s.count(pando.ProbeTCP); n < 15 || n > 25 {
			t.Errorf("%d startup probes in 50 s, want about 21", n)
		}
		b.pass(20 * time.Second)
		b.phase("web-1", pando.PhaseInRotation)
		if n := s.count(pando.ProbeHTTP); n != 1 {
			t.Errorf("the ready probe is asked %d times, want once", n)
		}
		was := s.count(pando.ProbeTCP)
		b.pass(time.Minute)
		if n, live := s.count(pando.ProbeTCP)-was, s.count(pando.ProbeGRPC); n > 0 || live < 50 {
			t.Errorf("while it serves, the startup probe is asked %d times, the live probe %d", n, live)
		}
	})
}

func TestAStartThatTakesTooLongHasFailed(t *testing.T) {
	onBench(t, func(b *bench) {
		b.starts(time.Hour, pando.Health{
			Startup: pando.Startup{Probe: pando.Probe{Kind: pando.ProbeTCP}, SecondsMax: 20},
			Ready:   pando.Probe{Kind: pando.ProbeHTTP}, ReadySecondsMax: 600,
		})
		b.pass(15 * time.Second)
		b.phase("web-1", pando.PhaseStarting)
		b.pass(10 * time.Second)
		b.gone("web-1")
		const want = "not started within 20s (`health.startup.within`): connection refused"
		if all := b.reasons(); !strings.Contains(all, want) {
			t.Errorf("the decisions are\n%s\nwant %q", all, want)
		}
	})
}

// Beside a ready probe, a report alone makes no instance ready.
func TestAReportStandsForNoProbe(t *testing.T) {
	tcp := pando.Health{Ready: pando.Probe{Kind: pando.ProbeTCP}, ReadySecondsMax: 60}
	onBench(t, func(b *bench) {
		s := b.starts(20*time.Second, tcp)
		b.pass(time.Second)
		b.ok(b.agent.self.Ready(b.ctx, "web-1"))
		b.pass(10 * time.Second)
		b.phase("web-1", pando.PhaseStarting)
		if s.count(pando.ProbeTCP) == 0 {
			t.Error("the ready probe is never asked")
		}
		b.pass(15 * time.Second)
		b.phase("web-1", pando.PhaseInRotation)
	})
}

// The program's own report ends the start, and the ready probe follows. Without the report the
// start fails, and the reason names both ways.
func TestTheReportOfAProgramEndsItsStart(t *testing.T) {
	reported := pando.Health{
		Startup: pando.Startup{Probe: pando.Probe{Kind: pando.ProbeReported}, SecondsMax: 60},
		Ready:   pando.Probe{Kind: pando.ProbeTCP}, ReadySecondsMax: 30,
	}
	onBench(t, func(b *bench) {
		s := b.starts(55*time.Second, reported)
		b.pass(40 * time.Second)
		b.phase("web-1", pando.PhaseStarting)
		if s.count(pando.ProbeTCP) > 0 {
			t.Error("the ready probe is asked before the report")
		}
		b.ok(b.agent.self.Ready(b.ctx, "web-1"))
		b.pass(10 * time.Second)
		b.phase("web-1", pando.PhaseStarting)
		b.pass(10 * time.Second)
		b.phase("web-1", pando.PhaseInRotation)
	})
	onBench(t, func(b *bench) {
		b.starts(0, reported)
		b.pass(70 * time.Second)
		b.gone("web-1")
		if all := b.reasons(); !strings.Contains(all, "READY=1") {
			t.Errorf("the decisions are\n%s", all)
		}
	})
}

// The success of a probe that is also the ready probe counts for both.
func TestOneProbeForBothIsAskedOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		tcp := pando.Probe{Kind: pando.ProbeTCP}
		s := b.starts(0, pando.Health{Startup: pando.Startup{Probe: tcp}, Ready: tcp})
		b.pass(time.Second)
		b.phase("web-1", pando.PhaseInRotation)
		if n := s.count(pando.ProbeTCP); n != 1 {
			t.Errorf("the probe is asked %d times", n)
		}
	})
}
