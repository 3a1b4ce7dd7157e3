package meter

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sim"
)

var web = pando.DefaultService("web")

// box is a sandbox that uses processors at a rate.
type box struct {
	pando.Sandbox
	mu        sync.Mutex
	begun     time.Time
	cpus      float64
	throttled float64
	limit     float64
	reads     int
	err       error
}

func (b *box) Strain(context.Context) (pando.Strain, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	age := time.Since(b.begun).Seconds()
	return pando.Strain{
		CPU: pando.Seconds(age * b.cpus), Throttled: pando.Seconds(age * b.throttled),
		CPUs: b.limit, Memory: 1 << 20, MemoryMax: 4 << 20,
	}, b.err
}

func (b *box) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads
}

// knowledge is a source from the test.
type knowledge struct {
	mu             sync.Mutex
	service        Service
	wanted         bool
	place, ingress int
}

func (k *knowledge) Service(pando.ServiceKey) (Service, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.service, k.wanted
}

func (k *knowledge) Ingress() (int, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.place, max(k.ingress, 1)
}

// moveTo makes this host the one at a place of several ingress hosts.
func (k *knowledge) moveTo(place, ingress int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.place, k.ingress = place, ingress
}

func (k *knowledge) want(wanted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = wanted
}

// peers has the streams of other hosts.
type peers struct {
	pando.Peers
	mu    sync.Mutex
	open  map[pando.HostName]chan pando.Meters
	tries int
	down  bool
}

func (p *peers) Meters(ctx context.Context, h pando.Host) (<-chan pando.Meters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries++
	if p.down {
		return nil, errors.New("no route")
	}
	c := make(chan pando.Meters, 10)
	p.open[h.Name] = c
	context.AfterFunc(ctx, func() { close(c) })
	return c, nil
}

func (p *peers) send(h pando.HostName, v pando.Meters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.Host = h
	p.open[h] <- v
}

// bed is a meter of host h1 with the instances web-1 (half busy) and web-2 (idle, throttled).
type bed struct {
	*Meter
	steering *sim.Steering
	source   *knowledge
	peers    *peers
	one, two *box
}

// run runs a test in virtual time.
func run(t *testing.T, by pando.BalanceBy, f func(t *testing.T, b *bed)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bed{
			steering: sim.NewSteering(), peers: &peers{open: map[pando.HostName]chan pando.Meters{}},
			one: &box{begun: time.Now(), cpus: 1}, two: &box{begun: time.Now(), throttled: 0.5, limit: 0.1},
		}
		here := []Local{{Instance: "web-1", Box: b.one}, {Instance: "web-2", Box: b.two}}
		b.source = &knowledge{wanted: true, service: Service{
			Key: web, Balance: pando.Balance{By: by}, Here: here,
			Takers: []pando.Endpoint{{Instance: "web-1"}, {Instance: "web-2"}},
			Hosts:  map[pando.InstanceID]pando.HostName{"web-1": "h1", "web-2": "h1"},
		}}
		b.Meter = New(Config{
			Host: pando.Host{Name: "h1", CPUs: 2, Memory: 1 << 30}, Steering: b.steering, Peers: b.peers,
			Source: b.source, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.Run(ctx); close(done) }()
		f(t, b)
		end()
		<-done
	})
}

func (b *bed) valueOf(i pando.InstanceID) float64 {
	for _, s := range b.steering.Ranking(web).Scores {
		if s.Instance == i {
			return s.Value
		}
	}
	return -1
}

func TestSharesBecomeScores(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		b.Want(web)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		// web-1: half of two processors and a quarter of its memory; web-2: half of its time throttled.
		const want = 0.25 + 0.0625
		for _, i := range []pando.InstanceID{"web-1", "web-2"} {
			if got := b.valueOf(i); got < want-0.01 || got > want+0.01 {
				t.Errorf("%s scores %g, want %g", i, got, want)
			}
		}
		m, ok := b.Of("web-2")
		if !ok || m.Pressure < 0.45 || m.Pressure > 0.55 || m.CPU != 0 || m.Memory != 0.25 {
			t.Errorf("web-2 measures %+v", m)
		}
		if n := b.one.count(); n < 15 || n > 22 {
			t.Errorf("%d readings in 2 s", n)
		}
	})
}

// The queues are read for a service with a weight for them. A slow reading is repeated rarely.
func TestAQueueScores(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		reads := 0
		b.Queues = func() (map[string]pando.LinkQueue, error) {
			reads++
			time.Sleep(5 * time.Millisecond)
			return map[string]pando.LinkQueue{
				"p1": {BacklogBytes: pando.QueueFull / 2}, "p2": {}, "eth0": {BacklogBytes: 1 << 30},
			}, nil
		}
		b.source.service.Here[0].Device, b.source.service.Here[1].Device = "p1", "p2"
		b.Want(web)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if m, _ := b.Of("web-1"); reads > 0 || m.Queue > 0 {
			t.Fatalf("%d readings without a weight: %+v", reads, m)
		}
		b.source.mu.Lock()
		b.source.service.Balance.Weights = pando.Weights{Queue: 1}
		b.source.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if m, _ := b.Of("web-1"); m.Queue < 0.49 || m.Queue > 0.51 {
			t.Errorf("web-1 measures %+v", m)
		}
		all := b.Scores(web)
		if len(all) != 2 || all[0].Value < 0.24 || all[0].Value > 0.26 || all[1].Value != 0 {
			t.Errorf("scores %+v, want a quarter and 0", all)
		}
		if reads < 15 || reads > 21 {
			t.Errorf("%d readings of 5 ms in 10 s, want one of 100 durations", reads)
		}
	})
}

// A meter without a service reads nothing, and a wanted service is measured at once.
func TestAnIdleMeterRests(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		time.Sleep(time.Hour)
		if n := b.one.count(); n > 0 {
			t.Fatalf("%d readings of an unwanted service", n)
		}
		b.Want(web)
		time.Sleep(time.Second)
		if b.one.count() == 0 {
			t.Fatal("no reading")
		}
		b.source.want(false)
		time.Sleep(time.Second)
		n := b.one.count()
		time.Sleep(time.Hour)
		if more := b.one.count(); more != n {
			t.Errorf("%d readings after the end", more-n)
		}
		if _, ok := b.Of("web-1"); ok || b.Scores(web) != nil {
			t.Error("the last measurement outlives its service")
		}
		b.source.want(true)
		b.Want(web)
		time.Sleep(time.Second)
		if b.one.count() == n {
			t.Error("it is not measured again")
		}
	})
}

func TestHavenRanksFromThePlaceOfItsIngress(t *testing.T) {
	run(t, pando.ByHaven, func(t *testing.T, b *bed) {
		b.two.throttled = 0
		b.Want(web)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := b.steering.Ranking(web).Order; !slices.Equal(got,
			[]pando.InstanceID{"web-2", "web-1"}) {
			t.Errorf("the only ingress begins with %v", got)
		}
		b.source.moveTo(1, 2)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := b.steering.Ranking(web).Order; !slices.Equal(got,
			[]pando.InstanceID{"web-1", "web-2"}) {
			t.Errorf("the second of two begins with %v", got)
		}
	})
}

// away adds web-3 on host h2.
func (b *bed) away() {
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	b.source.service.Takers = append(b.source.service.Takers, pando.Endpoint{Instance: "web-3"})
	b.source.service.Hosts["web-3"] = "h2"
	b.source.service.Others = []pando.Host{{Name: "h2"}}
}

func TestAnotherHostCountsUntilItFallsSilent(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		b.away()
		b.Want(web)
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		b.peers.send("h2", pando.Meters{Link: 0.5, All: []pando.Meter{
			{Instance: "web-3", Service: web, CPU: 1},
			{Instance: "web-1", Service: web, CPU: 1}, // of another host: it is not believed
		}})
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := b.valueOf("web-3"); got != 1.25 {
			t.Errorf("web-3 scores %g, want 1 for its processor and 0.25 for the path", got)
		}
		// Scores below the band are the mean of the three.
		if got := b.valueOf("web-1"); got > 0.7 {
			t.Errorf("another host raised the score of web-1 to %g", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		mean := (b.valueOf("web-1") + b.valueOf("web-2")) / 2
		if got := b.valueOf("web-3"); got < mean-0.01 || got > mean+0.01 {
			t.Errorf("after silence web-3 scores %g, want the mean %g", got, mean)
		}
	})
}

// A host without a stream is tried again less and less often, and left once its instances are gone.
func TestAHostOutOfReachIsTriedAgain(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		b.away()
		b.peers.down = true
		b.Want(web)
		time.Sleep(time.Minute)
		synctest.Wait()
		tries := func() int { b.peers.mu.Lock(); defer b.peers.mu.Unlock(); return b.peers.tries }
		if n := tries(); n < 5 || n > 30 {
			t.Errorf("%d tries in a minute", n)
		}
		b.source.mu.Lock()
		b.source.service.Others = nil
		b.source.mu.Unlock()
		time.Sleep(time.Second)
		n := tries()
		time.Sleep(time.Minute)
		if more := tries(); more != n {
			t.Errorf("%d tries of a host without instances", more-n)
		}
	})
}

func TestAListenerGetsTheNewest(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		ctx, end := context.WithCancel(t.Context())
		from, err := b.Listen(ctx)
		if err != nil {
			t.Fatal(err)
		}
		b.Want(web)
		time.Sleep(10 * time.Second) // it never reads
		if n := b.one.count(); n < 80 {
			t.Errorf("%d readings in 10 s beside a slow listener", n)
		}
		if v := <-from; time.Since(v.At) > 200*time.Millisecond || len(v.All) != 2 || v.Host != "h1" {
			t.Errorf("the newest measurement is %+v", v)
		}
		end()
		for range from {
		}
		for range listenersMax {
			if _, err := b.Listen(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Listen(t.Context()); !errors.Is(err, pando.ErrTooLarge) {
			t.Errorf("one listener too many: %v", err)
		}
	})
}

// An instance that ends has no measurement, and the others keep theirs.
func TestABrokenReadingHarmsNoOther(t *testing.T) {
	run(t, pando.ByScore, func(t *testing.T, b *bed) {
		b.two.err = errors.New("gone")
		b.steering.Fail("Score", 3)
		b.Want(web)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if b.valueOf("web-1") < 0.2 || b.valueOf("web-2") != b.valueOf("web-1") {
			t.Errorf("scores %v", b.steering.Ranking(web).Scores)
		}
		b.one.mu.Lock()
		b.one.begun = time.Now() // the totals fall
		b.one.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := b.valueOf("web-1"); got < 0.2 || got > 0.4 {
			t.Errorf("after new totals web-1 scores %g", got)
		}
	})
}
