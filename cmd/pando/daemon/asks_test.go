package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// counting is a control that counts its asks.
type counting struct {
	asks int
	err  error // its answer; DeadlineExceeded: it gives none
}

func (s *counting) Answer(
	ctx context.Context, _ pando.Fence, _ pando.Intent, sent func(),
) ([]pando.Record, error) {
	s.asks++
	sent()
	if errors.Is(s.err, context.DeadlineExceeded) {
		<-ctx.Done()
	}
	return nil, s.err
}

// standing is a clock that a test sets.
type standing struct {
	clock.Clock
	now time.Time
}

func (c *standing) Now() time.Time { return c.now }

// toLeader returns the path of asks of host1, which has a server beside those of two other hosts.
func toLeader(r pando.Registry) (l *leader, c *standing, all map[pando.HostName]*counting) {
	all = map[pando.HostName]*counting{"host1": {}, "host2": {}, "host3": {}}
	c = &standing{now: time.Now()}
	return &leader{own: "host1", here: all["host1"], clock: c, registry: r,
		there: func(ctx context.Context, h pando.HostName, by pando.Fence, i pando.Intent,
			sent func()) ([]pando.Record, error) {
			return all[h].Answer(ctx, by, i, sent)
		}}, c, all
}

func TestAnAskGoesToTheLeader(t *testing.T) {
	a := cluster1(t)
	l, _, all := toLeader(a.control.Registry)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.run(ctx) }()
	defer func() { stop(); <-ended }()
	resign := func() {}
	for n, name := range []string{"", "host2", "host3", "host1"} {
		resign()
		resign = makeLead(t, a, l, name)
		if _, err := l.Answer(t.Context(), pando.Fence{}, pando.Intent{}, func() {}); err != nil {
			t.Errorf("%q leads: %v", name, err)
		}
		got := fmt.Sprint(all["host1"].asks, all["host2"].asks, all["host3"].asks)
		if want := []string{"1 0 0", "1 1 0", "1 1 1", "2 1 1"}[n]; got != want {
			t.Errorf("%q leads, and the servers got %s asks, want %s", name, got, want)
		}
	}
	resign()
	makeLead(t, a, l, "")
	l.here = nil
	if _, err := l.Answer(t.Context(), pando.Fence{}, pando.Intent{}, func() {}); !errors.Is(err,
		pando.ErrUnavailable) {
		t.Errorf("a host without a server was answered without a leader: %v", err)
	}
}

// makeLead makes a server the leader of control, or none, and waits until l follows it.
func makeLead(t *testing.T, a admission, l *leader, name string) (resign func()) {
	t.Helper()
	resign = func() {}
	if name != "" {
		ctx, cancel := context.WithCancel(t.Context())
		_, lost, err := a.control.Registry.Lead(ctx, "control", name)
		if err != nil {
			t.Fatal(err)
		}
		resign = func() { cancel(); <-lost }
	}
	for end := time.Now().Add(20 * time.Second); ; {
		l.mu.Lock()
		is := l.name
		l.mu.Unlock()
		if is == pando.HostName(name) {
			return resign
		}
		if time.Now().After(end) || pando.Sleep(t.Context(), clock.Clock{}, time.Millisecond) != nil {
			t.Fatalf("the leader is %q, want %q", is, name)
		}
	}
}

// A leader without an answer costs one wait, not one for each ask.
func TestASilentLeaderIsLeftAloneForAWhile(t *testing.T) {
	for what, err := range map[string]error{
		"silent": context.DeadlineExceeded, "of an earlier build": pando.ErrUnsupported,
	} {
		l, clock, all := toLeader(nil)
		l.name, all["host2"].err = "host2", err
		ask := func() int {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := l.Answer(ctx, pando.Fence{}, pando.Intent{}, func() {}); err == nil {
				t.Errorf("a leader that is %s answered", what)
			}
			return all["host2"].asks
		}
		if n := ask() + ask(); n != 2 {
			t.Errorf("a leader that is %s got %d asks, want 1", what, n-1)
		}
		if clock.now = clock.now.Add(silenceWait); ask() != 2 {
			t.Errorf("a leader that was %s gets no ask again", what)
		}
	}
}
