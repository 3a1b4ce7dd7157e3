// Package load offers HTTP/1.1 requests on a schedule and accounts for every request. It is an open
// loop: a request is due at its scheduled time, even if answers are slow. Latency counts from that
// time, so a stall of the service shows in the figures and does not slow the load down. The package
// never opens more connections than configured.
package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

const (
	tick             = time.Millisecond // interval at which requests become due
	latencyMaxMicros = int64(60 * time.Second / time.Microsecond)

	// waitingMax bounds the due requests that wait for a connection. On a busy machine all requests of
	// a demo may have to wait. They are answered late, which their latencies show, and do not fail.
	waitingMax = 1 << 20
)

// Config is the configuration of a load.
type Config struct {
	Address     string // host:port
	Path        string
	Schedule    Schedule
	Connections int           // maximum open at once
	FreshShare  float64       // share of requests that open a new connection, 0 to 1
	Timeout     time.Duration // of one request, including dialling
	ReportEvery time.Duration
}

// Report counts the events since the report before. Summed over a run, Offered = Answered + the sum
// of Failed.
type Report struct {
	AtMillis int64          `json:"at_ms"` // since the load began
	Offered  int            `json:"offered"`
	Answered int            `json:"answered"`
	Failed   map[string]int `json:"failed,omitempty"` // by reason
	// Unanswered counts the timeouts among Failed by the server of the connection: the one that
	// answered there before. "" counts new connections.
	Unanswered map[string]int `json:"unanswered,omitempty"`
	// connections that ended unannounced during a request
	Broken int `json:"broken"`
	// BrokenAt counts those among Broken by server, as Unanswered does.
	BrokenAt map[string]int `json:"broken_at,omitempty"`
	// Requests repeated because the server had closed an idle connection.
	IdleClosed    int     `json:"idle_closed"`
	Dialled       int     `json:"dialled"`
	LatencyMicros []int64 `json:"latency_p50_p99_max_us"`
	// The last report; its latencies cover the whole run.
	Final bool `json:"final,omitempty"`
}

// tally adds up the outcomes of the senders.
type tally struct {
	sync.Mutex
	now       Report
	part, all *hdr.Histogram
}

func newTally() *tally {
	return &tally{part: hdr.New(1, latencyMaxMicros, 3), all: hdr.New(1, latencyMaxMicros, 3)}
}

func (t *tally) count(o outcome, latency time.Duration) {
	t.Lock()
	defer t.Unlock()
	t.now.Dialled += o.dialled
	t.now.IdleClosed += o.idleClosed
	t.now.Broken += o.broken
	if o.failed != "" {
		t.fail(o.failed)
		if o.failed == timedOut {
			t.now.Unanswered = one(t.now.Unanswered, o.at)
		}
		if o.broken > 0 {
			t.now.BrokenAt = one(t.now.BrokenAt, o.at)
		}
		return
	}
	t.now.Answered++
	micros := min(max(1, latency.Microseconds()), latencyMaxMicros)
	_ = t.part.RecordValue(micros) // the line above keeps it within the bounds
	_ = t.all.RecordValue(micros)
}

// fail counts a failure. The caller holds the lock.
func (t *tally) fail(reason string) {
	t.now.Failed = one(t.now.Failed, reason)
}

// one adds 1 to a count. It makes the map if there is none.
func one(counts map[string]int, of string) map[string]int {
	if counts == nil {
		counts = map[string]int{}
	}
	counts[of]++
	return counts
}

// take returns the counts since the last call and resets them.
func (t *tally) take(at time.Duration, final bool) Report {
	t.Lock()
	defer t.Unlock()
	r, h := t.now, t.part
	if final {
		h = t.all
	}
	r.AtMillis, r.Final = at.Milliseconds(), final
	r.LatencyMicros = []int64{h.ValueAtQuantile(50), h.ValueAtQuantile(99), h.Max()}
	t.now = Report{}
	t.part.Reset()
	return r
}

// Run offers the schedule and returns when every request has been answered or has failed.
// Cancelling ctx ends the schedule early. Requests that were offered by then are still accounted
// for.
func Run(ctx context.Context, c Config, report func(Report)) {
	counts, due := newTally(), make(chan time.Time,
		min(c.Schedule.Due(c.Schedule.Length()), waitingMax))
	begin := time.Now()
	var senders sync.WaitGroup
	for range c.Connections {
		senders.Go(func() {
			s := sender{config: c}
			defer s.close()
			for at := range due {
				o := s.send(rand.Float64() < c.FreshShare)
				counts.count(o, time.Since(at))
			}
		})
	}
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		every := time.NewTicker(c.ReportEvery)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				report(counts.take(time.Since(begin), false))
			case <-done:
				return
			}
		}
	})
	offer(ctx, c.Schedule, begin, due, counts)
	close(due)
	senders.Wait()
	close(done)
	reporter.Wait()
	report(counts.take(time.Since(begin), true))
}

// offer passes each request to the senders when it is due. A request that finds the queue full
// counts as failed, so that no request is lost silently.
func offer(ctx context.Context, s Schedule, begin time.Time, due chan<- time.Time, counts *tally) {
	every := time.NewTicker(tick)
	defer every.Stop()
	offered, last := 0, time.Duration(0)
	for last < s.Length() {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		passed := min(time.Since(begin), s.Length())
		fresh := s.Due(passed) - offered
		for i := range fresh {
			// Spread the requests over the time since the last tick. If this process was delayed, they were
			// due earlier.
			at := begin.Add(last + (passed-last)*time.Duration(i+1)/time.Duration(fresh))
			counts.Lock()
			counts.now.Offered++
			select {
			case due <- at:
			default:
				counts.fail("queue full")
			}
			counts.Unlock()
		}
		offered, last = offered+fresh, passed
	}
}
