package sim

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/control/decide"
)

// A year of running has 10⁵ scale events and 10³ deaths of hosts. PANDO_YEAR sets the number of
// days: the gate runs one, `make soak` a year.
const (
	hoursDefault = 24 / slower
	eventEvery   = 5 * time.Minute
	deathEvery   = 8 * time.Hour
	lookEvery    = time.Hour
	reportEvery  = 10 * 24 * time.Hour
)

// year is a long run without faults other than deaths.
type year struct {
	*cluster
	o       *operator
	audit   *audit
	read    pando.StoreRevision
	events  int // granted asks, pins and deploys
	deaths  int
	records int // the most records that the store had
	bytes   int // likewise
}

func TestAYearOfRunning(t *testing.T) {
	hours := number(t, "PANDO_YEAR", 0) * 24
	switch {
	case hours != 0:
	case testing.Short():
		hours = hoursDefault / 4
	default:
		hours = hoursDefault
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer time.Sleep(agent.Lease + time.Second)
		const seed = 2 // three hosts, one service without state
		c := newCluster(ctx, t, seed, hostsOf(seed), delayLeast, nothingMore)
		y := &year{cluster: c, audit: newAudit(t)}
		y.trimEvery = 10 * time.Minute
		defer y.endAll(cancel)
		y.startAll()
		y.o = newOperator(y.cluster, service)
		y.o.spec.Environment[envCalm] = "yes"
		y.o.spec.Scale = pando.Scale{Min: 2, Max: 6, Warm: 1}
		if y.o.until("the service is deployed", settleTime, y.o.deploy) {
			y.run(time.Duration(hours) * time.Hour)
		}
	})
}

func (y *year) run(length time.Duration) {
	goroutines := 0
	for began := time.Now(); time.Since(began) < length && !y.t.Failed(); {
		hour := y.dice("hour", uint64(time.Since(began)))
		for range lookEvery / eventEvery {
			nap(eventEvery)
			if hour.IntN(3) == 0 {
				_ = y.o.change()
			}
		}
		if time.Since(began)%deathEvery < lookEvery {
			h := y.hosts[hour.IntN(len(y.hosts))]
			h.killSoon(1, false)
			h.reboot()
			y.deaths++
			nap(2 * agent.Lease)
			h.start()
		}
		y.quieten(true)
		if !y.o.until("the pin is lifted", settleTime, y.o.unpin) ||
			!y.o.until("the service serves", settleTime, y.serves) {
			return
		}
		y.look()
		if n := runtime.NumGoroutine(); goroutines == 0 {
			goroutines = n
		} else if n > 2*goroutines+50 {
			y.t.Errorf("%d goroutines after %s, %d after an hour", n, time.Since(began), goroutines)
		}
		y.quieten(false)
		if past := time.Since(began); past%reportEvery < lookEvery {
			y.report(past)
		}
	}
	y.report(length)
	if want := int(length / eventEvery / 2); y.events < want {
		y.t.Errorf("%d scale events in %s, want at least %d", y.events, length, want)
	}
}

// report logs the counts so far: a whole year runs for hours.
func (y *year) report(past time.Duration) {
	y.t.Logf("%d days: %d scale events, %d deaths of hosts; the store had at most %d records, %d KiB",
		past/(24*time.Hour), y.events, y.deaths, y.records, y.bytes>>10)
}

func (y *year) quieten(quiet bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.quiet = quiet
}

// serves checks that the service has its instances again.
func (y *year) serves() error {
	y.follow()
	w := y.audit.world
	svc, n := w.Services[service].V, 0
	for _, i := range w.Of(service) {
		if i.Phase == pando.PhaseInRotation {
			n++
		}
	}
	if svc.Phase != pando.ServiceServing || svc.Current != svc.Target || n < y.o.spec.Scale.Min {
		return fmt.Errorf("it is %s (%s), %d in rotation:%s", svc.Phase, svc.Reason, n,
			list(w.Of(service)))
	}
	return nil
}

// follow audits the commits since the last look, and compacts the store as a real one is.
func (y *year) follow() {
	all := y.registry.History()
	from := slices.IndexFunc(all, func(b pando.Batch) bool { return b.Revision > y.read })
	if from < 0 {
		return
	}
	y.audit.replay(all[from:])
	for _, b := range all[from:] {
		for _, r := range b.Changes {
			if r.Value != nil && r.Created == r.Modified && r.Key.Kind() == pando.KindInstance {
				y.events++
			}
		}
	}
	y.read = all[len(all)-1].Revision
	y.registry.Compact(y.read - min(y.read, 1000))
}

// look checks every bound.
func (y *year) look() {
	records, bytes := y.registry.Size()
	y.records, y.bytes = max(y.records, records), max(y.bytes, bytes)
	w := y.audit.world
	// A trim removes 40 records at a time, so a history may be a little longer than its bound.
	if n := len(w.IntentsOf(service)); n > decide.IntentsKept+100 {
		y.t.Errorf("%d intents are kept", n)
	}
	if n := len(w.DecisionsOf(service)); n > decide.DecisionsKept+100 {
		y.t.Errorf("%d decisions are kept", n)
	}
	if n := len(w.Revisions[service]); n > decide.RevisionsKept+10 {
		y.t.Errorf("%d revisions are kept", n)
	}
	if bytes > 2<<20 {
		y.t.Errorf("the records take %d bytes", bytes)
	}
	boxes := 0
	for _, h := range y.hosts {
		boxes += len(h.sandboxes.All()) + len(h.sandboxes.Prepared())
	}
	if most := len(w.Of(service)) + 2; boxes > most {
		y.t.Errorf("%d sandboxes for %d instances", boxes, len(w.Of(service)))
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for id, started := range y.intents {
		if len(slices.Compact(started)) > 1 {
			y.t.Errorf("intent %s started %v", id, started)
		}
	}
	for _, cut := range y.cut {
		y.t.Errorf("flows of a living instance were broken: %s", cut)
	}
	y.intents, y.cut = map[pando.IntentID][]pando.InstanceID{}, nil
}
