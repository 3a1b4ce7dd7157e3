package steer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

var errKernel = errors.New("the kernel refused it")

// kernel is a steering. Its calls fail and take time as a test wants. It keeps the tables in force.
type kernel struct {
	*sim.Steering
	mu        sync.Mutex
	fails     func(pando.ServiceKey) bool
	takes     func() time.Duration
	inForce   map[pando.ServiceKey]pando.SteeringTable
	published map[pando.ServiceKey]int     // attempts
	partly    func(pando.ServiceKey) error // the error of a table that is in force
}

func (k *kernel) attempt(s pando.ServiceKey, change func()) error {
	k.mu.Lock()
	wait, fails := k.takes(), k.fails(s)
	k.published[s]++
	k.mu.Unlock()
	time.Sleep(wait)
	k.mu.Lock()
	defer k.mu.Unlock()
	if fails {
		return fmt.Errorf("%s: %w", s, errKernel)
	}
	change()
	return nil
}

func (k *kernel) Publish(_ context.Context, t pando.SteeringTable) error {
	if err := k.attempt(t.Service, func() { k.inForce[t.Service] = t }); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.partly(t.Service)
}

func (k *kernel) Withdraw(_ context.Context, s pando.ServiceKey) error {
	return k.attempt(s, func() { delete(k.inForce, s) })
}

func (k *kernel) Published(context.Context) (all []pando.ServiceKey, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for s := range k.inForce {
		all = append(all, s)
	}
	return all, nil
}

// version returns the version of the table in force, or 0 without a table.
func (k *kernel) version(s pando.ServiceKey) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t, ok := k.inForce[s]; ok {
		return t.Endpoints[0].Weight
	}
	return 0
}

func (k *kernel) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kernel) attempts(s pando.ServiceKey) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.published[s]
}

// plan is the wanted steering: a version per service. The table of a version has it as a weight.
type plan struct {
	mu       sync.Mutex
	versions map[pando.ServiceKey]int
	removed  map[pando.ServiceKey]int // the newest version of all at the last removal
	last     int
}

func (p *plan) Table(s pando.ServiceKey) (pando.SteeringTable, Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := pando.SteeringTable{Service: s}
	v, ok := p.versions[s]
	if !ok {
		return t, Withdraw
	}
	t.Endpoints = []pando.Endpoint{{Instance: "i", Weight: v}}
	return t, Publish
}

func (p *plan) Neighbours() []pando.Host { return nil }

// next gives a service a new version and returns it.
func (p *plan) next(s pando.ServiceKey) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.versions[s] = p.last
	return p.last
}

func (p *plan) remove(s pando.ServiceKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.versions, s)
	p.removed[s] = p.last
}

// removedSince reports whether a service was removed after a version.
func (p *plan) removedSince(s pando.ServiceKey, version int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removed[s] >= version
}

// rig is a queue over a kernel and a plan, in virtual time.
type rig struct {
	*testing.T
	*kernel
	*plan
	ctx   context.Context
	queue *Queue
}

func onRig(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &rig{
			T: t, ctx: ctx,
			plan: &plan{versions: map[pando.ServiceKey]int{}, removed: map[pando.ServiceKey]int{}},
			kernel: &kernel{
				Steering: sim.NewSteering(), inForce: map[pando.ServiceKey]pando.SteeringTable{},
				published: map[pando.ServiceKey]int{},
				fails:     func(pando.ServiceKey) bool { return false },
				partly:    func(pando.ServiceKey) error { return nil },
				takes:     func() time.Duration { return 0 },
			},
		}
		r.queue = New(r.kernel, r.plan, sim.Clock{}, slog.New(slog.DiscardHandler))
		go r.queue.Run(ctx)
		test(r)
	})
}

// change gives a service a new version, queues it and returns the version.
func (r *rig) change(s pando.ServiceKey) int {
	v := r.next(s)
	r.queue.Changed(s)
	return v
}

func service(n int) pando.ServiceKey {
	return pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", n)))
}

// Publications fail at random and services come and go. No wait ends before its change is in force,
// and in the end every table in force is the wanted one.
func TestEveryWantedTableIsInForceInTheEnd(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			onRig(t, func(r *rig) { r.churn(seed) })
		})
	}
}

func (r *rig) churn(seed uint64) {
	const services = 12
	random := rand.New(rand.NewPCG(seed, 1))
	odds := rand.New(rand.NewPCG(seed, 2)) // guarded by the kernel's lock
	r.set(func() {
		r.fails = func(pando.ServiceKey) bool { return odds.IntN(100) < 40 }
		r.takes = func() time.Duration { return time.Duration(odds.IntN(3000)) * time.Microsecond }
	})
	var waits sync.WaitGroup
	for range 400 {
		s := service(random.IntN(services))
		switch n := random.IntN(10); {
		case n == 0:
			r.remove(s)
			r.queue.Changed(s)
		case n < 5:
			r.change(s)
		default:
			v := r.change(s)
			waits.Go(func() {
				if err := r.queue.Wait(r.ctx, s); err != nil {
					r.Errorf("wait for %s: %v", s, err)
				}
				if got := r.version(s); got < v && !(got == 0 && r.removedSince(s, v)) {
					r.Errorf("a wait for version %d of %s ended while %d was in force", v, s, got)
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
	}
	waits.Wait()
	r.set(func() { r.fails = func(pando.ServiceKey) bool { return false } })
	time.Sleep(2 * RetryWaitMax)
	synctest.Wait()
	for n := range services {
		if want, got := r.versions[service(n)], r.version(service(n)); got != want {
			r.Errorf("version %d of %s is in force, want %d", got, service(n), want)
		}
	}
	if len(r.queue.failing) > 0 || len(r.queue.ready) > 0 {
		r.Errorf("%d services fail and %d are ready after all", len(r.queue.failing), len(r.queue.ready))
	}
	if lines, live := len(r.queue.lines), len(r.versions); lines != live {
		r.Errorf("the queue keeps %d services, %d exist", lines, live)
	}
}

func TestAFailingServiceDelaysNoOther(t *testing.T) {
	onRig(t, func(r *rig) {
		bad, good := service(1), service(2)
		r.set(func() { r.fails = func(s pando.ServiceKey) bool { return s == bad } })
		v := r.change(bad)
		for range 100 {
			began, want := time.Now(), r.change(good)
			if err := r.queue.Wait(r.ctx, good); err != nil || r.version(good) != want {
				t.Fatalf("version %d is in force, want %d (%v)", r.version(good), want, err)
			}
			if took := time.Since(began); took > 0 {
				t.Fatalf("a change waited %v for a service that fails", took)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := r.attempts(bad); n < 5 || n > 15 {
			t.Errorf("%d attempts in 10 s, want 5 to 15", n)
		}
		st := r.queue.Status(bad)
		if !errors.Is(st.Err, errKernel) || st.Applied != 0 || st.Tried != st.Wanted || st.Next.IsZero() {
			t.Errorf("the status of the failing service is %+v", st)
		}
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return false } })
		time.Sleep(RetryWaitMax)
		synctest.Wait()
		st = r.queue.Status(bad)
		if r.version(bad) != v || st.Err != nil || st.Applied != st.Wanted || !st.Next.IsZero() {
			t.Errorf("after the repair version %d is in force, and its status is %+v", r.version(bad), st)
		}
	})
}

// Thousands of failing services cost a healthy one nothing: the failed ones are looked through when
// one is due, not at each change.
func TestManyFailuresAreLookedThroughRarely(t *testing.T) {
	onRig(t, func(r *rig) {
		const bad, changes = 2000, 2000
		good := service(bad)
		r.set(func() { r.fails = func(s pando.ServiceKey) bool { return s != good } })
		for n := range bad {
			r.change(service(n))
		}
		synctest.Wait()
		before := r.scanned()
		for range changes {
			want := r.change(good)
			if err := r.queue.Wait(r.ctx, good); err != nil || r.version(good) != want {
				t.Fatalf("version %d is in force, want %d (%v)", r.version(good), want, err)
			}
		}
		if n := r.scanned() - before; n > 2 {
			t.Errorf("%d changes looked %d times through the failed services", changes, n)
		}
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return false } })
		time.Sleep(2 * RetryWaitMax)
		synctest.Wait()
		if n := len(r.queue.failing); n > 0 {
			t.Errorf("%d services still fail", n)
		}
	})
}

// scanned returns how often the queue looked through the failed services.
func (r *rig) scanned() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return r.queue.scans
}

// A failed service that changes is attempted at once, and its retries keep their pace.
func TestAChangeOfAFailedServiceIsTriedAtOnce(t *testing.T) {
	onRig(t, func(r *rig) {
		bad := service(1)
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return true } })
		r.change(bad)
		time.Sleep(time.Minute)
		before := r.attempts(bad)
		r.change(bad)
		synctest.Wait()
		if n := r.attempts(bad) - before; n != 1 {
			t.Errorf("%d attempts after a change, want 1", n)
		}
		time.Sleep(time.Minute)
		if n := r.attempts(bad) - before; n > 15 {
			t.Errorf("%d attempts in the minute after a change, want at most 15", n)
		}
	})
}

func TestChangesOfOneServiceAreOnePublication(t *testing.T) {
	onRig(t, func(r *rig) {
		r.set(func() { r.takes = func() time.Duration { return time.Second } })
		busy := service(0)
		r.change(busy)
		synctest.Wait() // the kernel works on it
		for n := range 1000 {
			r.change(service(1 + n%3))
		}
		if n := len(r.queue.ready); n != 3 {
			t.Errorf("%d services wait in the queue, want 3", n)
		}
		for n := range 3 {
			if err := r.queue.Wait(r.ctx, service(1+n)); err != nil {
				t.Fatal(err)
			}
			if got := r.attempts(service(1 + n)); got != 1 {
				t.Errorf("%s was published %d times, want 1", service(1+n), got)
			}
		}
	})
}

// A table that did not change is not published again, unless the last publication failed.
func TestAnUnchangedTableIsNotPublishedAgain(t *testing.T) {
	onRig(t, func(r *rig) {
		s := service(1)
		r.change(s)
		synctest.Wait()
		for range 10 {
			r.queue.Changed(s)
			if err := r.queue.Wait(r.ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.attempts(s); n != 1 {
			t.Errorf("%d publications of one table, want 1", n)
		}
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return true } })
		first := r.versions[s]
		r.change(s)
		synctest.Wait()
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return false } })
		r.versions[s] = first // the failed publication may have changed something
		r.queue.Changed(s)
		synctest.Wait()
		if n := r.attempts(s); n != 3 {
			t.Errorf("%d publications, want 3", n)
		}
	})
}

func TestTriedEndsAtAFailureAndInForceDoesNot(t *testing.T) {
	onRig(t, func(r *rig) {
		s := service(1)
		r.set(func() { r.fails = func(pando.ServiceKey) bool { return true } })
		r.change(s)
		tried, stop := r.queue.Tried(s)
		defer stop()
		inForce, stop := r.queue.InForce(s)
		synctest.Wait()
		select {
		case <-tried:
		default:
			t.Error("a failed attempt is no attempt")
		}
		select {
		case <-inForce:
			t.Error("a table that could not be published is in force")
		default:
		}
		stop()
		line := r.queue.lines[job{publishTable, s}]
		if n := len(line.waiters); n > 0 {
			t.Errorf("%d waiters are left after both have stopped", n)
		}
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		if err := r.queue.Wait(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the wait for a failing service ended with %v", err)
		}
	})
}

func TestServicesOfAFormerAgentAreWithdrawn(t *testing.T) {
	onRig(t, func(r *rig) {
		kept, gone := service(1), service(2)
		r.set(func() {
			for _, s := range []pando.ServiceKey{kept, gone} {
				endpoint := pando.Endpoint{Instance: "i", Weight: 1}
				r.inForce[s] = pando.SteeringTable{Service: s, Endpoints: []pando.Endpoint{endpoint}}
			}
		})
		r.next(kept)
		r.queue.WithdrawStrangers()
		synctest.Wait()
		left, _ := r.Published(r.ctx)
		if !slices.Equal(left, []pando.ServiceKey{kept}) {
			t.Errorf("%v are steered, want %v", left, kept)
		}
		if err := r.queue.Wait(r.ctx, gone); err != nil {
			t.Error(err)
		}
	})
}

// A change that comes between the start of an attempt and its look at the records belongs to the
// attempt, and its job is queued once more.
func TestAChangeAtTheStartOfAWithdrawalIsNoTrap(t *testing.T) {
	steering := &kernel{
		Steering: sim.NewSteering(), inForce: map[pando.ServiceKey]pando.SteeringTable{},
		published: map[pando.ServiceKey]int{},
		fails:     func(pando.ServiceKey) bool { return false },
		takes:     func() time.Duration { return 0 },
	}
	q := New(steering, &plan{}, sim.Clock{}, slog.New(slog.DiscardHandler))
	gone := service(1)
	q.Changed(gone)
	for n := range 2 {
		j, _, ok := q.take()
		if !ok {
			t.Fatalf("attempt %d has no job", n)
		}
		if n == 0 {
			q.Changed(gone)
		}
		q.do(t.Context(), j)
	}
	if _, _, ok := q.take(); ok || len(q.lines) != 0 {
		t.Errorf("a job is left, or one of %d lines", len(q.lines))
	}
}
