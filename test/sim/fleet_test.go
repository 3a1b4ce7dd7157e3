package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// size is the size of a simulated cluster, and its load.
type size struct {
	hosts     int // real agents and hollow hosts together
	real      int // with a real agent
	services  int
	instances int           // of all services at the start
	asks      float64       // of instances per second
	length    time.Duration // of the load and the faults
}

// The gate runs a small fleet. PANDO_FLEET sets the number of hosts of a large one, with 100
// instances for each: `make soak` runs 1,000.
var (
	fleetDefault = size{hosts: 40, real: 3, services: 30, instances: 600, asks: 10,
		length: time.Minute}
	realHosts = 5 // of a large fleet: each has a copy of all endpoints
)

// fleet is a cluster of many hosts and services.
type fleet struct {
	*cluster
	size   size
	hollow map[pando.HostName]*hollow
	ids    *sim.IDs // of the asks of hollow hosts
	*auditor
	read  pando.StoreRevision
	began time.Duration // of the machine's clock, as the next one
	told  time.Duration // of the last report

	counting sync.Mutex
	n        counts
}

// counts holds the events of a fleet.
type counts struct {
	answered, unanswered, deaths, terms, deploys, commits int
}

func (f *fleet) count(do func(*counts)) {
	f.counting.Lock()
	defer f.counting.Unlock()
	do(&f.n)
}

// machineTime returns the time of this machine. The clock of a bubble is virtual.
func machineTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// TestAFleet runs many hosts and services under asks, deaths of hosts and leaders, faults of the
// store and deploys. Afterwards every service is as its spec wants.
func TestAFleet(t *testing.T) {
	want := fleetDefault
	if n := int(number(t, "PANDO_FLEET", 0)); n > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU())) // see TestMain
		defer debug.SetGCPercent(debug.SetGCPercent(200))              // its records take gigabytes
		want = size{hosts: n, real: min(n, realHosts), services: n, instances: 100 * n,
			asks:   float64(number(t, "PANDO_FLEET_ASKS", 100)),
			length: time.Duration(number(t, "PANDO_FLEET_SECONDS", 300)) * time.Second}
	}
	if slower > 1 || testing.Short() && want == fleetDefault {
		want.hosts, want.services, want.instances = 20, 10, 100
	}
	a := newAuditor(t)
	var audits sync.WaitGroup
	audits.Go(a.run)
	defer audits.Wait()
	defer close(a.news)
	synctest.Test(t, func(t *testing.T) { runFleet(t, want, a) })
}

func runFleet(t *testing.T, want size, a *auditor) {
	ctx, cancel := context.WithCancel(context.Background())
	defer time.Sleep(agent.Lease + time.Second)
	f := &fleet{size: want, hollow: map[pando.HostName]*hollow{}, ids: &sim.IDs{Process: 999},
		auditor: a, began: machineTime(), told: machineTime()}
	f.cluster = newCluster(ctx, t, 2, want.real, fleetTick, func(c *cluster) { c.lean = true })
	f.registry.Even()
	f.trimEvery = 10 * time.Minute
	for _, h := range f.hosts {
		h.record.CPUs = 64
	}
	for n := want.real; n < want.hosts; n++ {
		name := pando.HostName(fmt.Sprintf("h%d", n+1))
		f.hollow[name] = &hollow{f: f,
			record: pando.Host{Name: name, Slot: n, CPUs: 64, Tunnel: true}}
	}
	defer f.endAll(cancel)
	f.startAll()
	f.go_(f.dispatch)
	for _, h := range f.sorted() {
		f.go_(h.start)
	}
	f.live()
}

// sorted returns the hollow hosts by slot.
func (f *fleet) sorted() []*hollow {
	out := make([]*hollow, 0, len(f.hollow))
	for _, h := range f.hollow {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *hollow) int { return a.record.Slot - b.record.Slot })
	return out
}

// live deploys the services, loads and hurts the cluster, and checks the end.
func (f *fleet) live() {
	ok := true
	await := func(what string, most time.Duration, do func() error) {
		ok = ok && f.until(what, most, do)
	}
	await("the hosts join", settleTime, f.joined)
	for n := range f.size.services {
		await(fmt.Sprintf("service %d is deployed", n), settleTime,
			func() error { return f.deploy(n, 1) })
	}
	await("the services serve", 20*time.Minute, f.serve)
	f.report("deployed")
	if ok {
		f.load()
	}
	f.registry.Fail(nil)
	f.registry.Lose(0)
	await("the services serve again", 20*time.Minute, f.serve)
	f.report("settled")
	f.catchUp()
	f.verifyAnswers(f.audit.steps)
	for _, cut := range f.cut {
		f.t.Errorf("flows of a living instance were broken: %s", cut)
	}
}

// until retries a step and audits the commits meanwhile.
func (f *fleet) until(what string, most time.Duration, do func() error) bool {
	for deadline := time.Now().Add(most); ; {
		err := do()
		for range int(time.Second / followEvery) {
			f.follow()
			if err == nil {
				break
			}
			nap(followEvery)
		}
		if err == nil || f.t.Failed() || f.failed() {
			return !f.t.Failed() && !f.failed()
		}
		if time.Now().After(deadline) {
			f.t.Errorf("%s within %s: %v", what, most, err)
			return false
		}
	}
}

func (f *fleet) joined() (err error) {
	f.catchUp()
	f.view(func(w *world.World) {
		if n := len(w.Hosts); n < f.size.hosts {
			err = fmt.Errorf("%d of %d hosts have joined", n, f.size.hosts)
		}
	})
	return err
}

func keyOf(n int) pando.ServiceKey {
	return pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%04d", n)))
}

// deploy deploys a revision of the nth service.
func (f *fleet) deploy(n, version int) error {
	each := f.size.instances / f.size.services
	spec := pando.Spec{
		Name: keyOf(n).Name, Command: []string{"web"},
		Environment: map[string]string{envNoState: "yes", envCalm: "yes",
			"VERSION": fmt.Sprint(version)},
		Ports:  []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}},
		Health: pando.Health{ReadySecondsMax: 10}, StopSeconds: 1,
		Rollout: pando.Rollout{HealthySeconds: 0.5, Surge: max(1, each/5)},
		Scale:   pando.Scale{Min: each, Max: 2 * each},
		Place:   pando.Place{Spread: pando.SpreadHost},
	}
	spec.Resources.CPUs = 0.05
	ctx, cancel := context.WithTimeout(f.ctx, 2*time.Second)
	defer cancel()
	_, err := f.front.Deploy(ctx, spec, by)
	return err
}

// load asks at the rate of the size while hosts and leaders die, the store fails and services are
// deployed.
func (f *fleet) load() {
	stop := time.Now().Add(f.size.length)
	var actors sync.WaitGroup
	act := func(name string, every time.Duration, do func(*rand.Rand)) {
		actors.Go(func() {
			for n := uint64(0); ; n++ {
				dice := f.dice(name, n)
				nap(time.Duration(dice.Int64N(int64(2 * every))))
				if time.Now().After(stop) {
					return
				}
				do(dice)
			}
		})
	}
	const askers = 50
	for n := range askers {
		act(fmt.Sprint("asker ", n), time.Duration(askers/f.size.asks*float64(time.Second)), f.askOne)
	}
	hosts := f.sorted()
	act("deaths", f.size.length/10, func(d *rand.Rand) {
		h := hosts[d.IntN(len(hosts))]
		if h.alive() == nil {
			return
		}
		f.count(func(n *counts) { n.deaths++ })
		h.die()
		f.go_(func() { nap(2 * pando.HostLease); h.start() })
	})
	act("leaders", f.size.length/6, func(d *rand.Rand) {
		f.count(func(n *counts) { n.terms++ })
		f.restart(f.controls[d.IntN(len(f.controls))], d, time.Second)
	})
	act("store", f.size.length/5, f.hurtStore)
	act("deploys", f.size.length/10, func(d *rand.Rand) {
		f.count(func(n *counts) { n.deploys++ })
		_ = f.deploy(d.IntN(f.size.services), 2+d.IntN(1000))
	})
	for time.Now().Before(stop) {
		nap(followEvery)
		f.follow()
	}
	actors.Wait()
	nap(2*pando.HostLease + time.Second) // the last death's host is back
	f.follow()
}

// askOne makes an instance of a hollow host ask, for one more or for its own end.
func (f *fleet) askOne(d *rand.Rand) {
	var all []pando.Instance
	f.view(func(w *world.World) { all = w.Of(keyOf(d.IntN(f.size.services))) })
	if len(all) == 0 {
		return
	}
	i := all[d.IntN(len(all))]
	h := f.hollow[i.Host]
	if h == nil || i.Phase != pando.PhaseInRotation {
		return
	}
	verb := pando.VerbReplicate
	if d.IntN(2) == 0 {
		verb = pando.VerbHalt
	}
	f.go_(func() { h.ask(i, verb) })
}

// dispatch hands each hollow host the records of its instances.
func (f *fleet) dispatch() {
	_ = world.Follow(f.ctx, sim.Clock{}, f.registry.As("fleet"), pando.KindInstance.Under(),
		func(b pando.Batch, _ bool) {
			for _, r := range b.Changes {
				if r.Value == nil {
					continue
				}
				v, err := world.DecodeAny(r)
				if err != nil {
					f.t.Error(err)
					return
				}
				i := v.(pando.Instance)
				h := f.hollow[i.Host]
				if h == nil {
					continue
				}
				if life := h.alive(); life != nil {
					f.go_(func() {
						h.step(life, world.Versioned[pando.Instance]{V: i, Modified: r.Modified})
					})
				}
			}
		})
}

// on returns the instances of a host.
func (f *fleet) on(h pando.HostName) (out []world.Versioned[pando.Instance]) {
	s, err := f.registry.As(string(h)).Snapshot(f.ctx, pando.KindInstance.Under())
	if err != nil {
		return nil
	}
	for _, r := range s.Records {
		if v, err := world.DecodeAny(r); err == nil {
			if i := v.(pando.Instance); i.Host == h {
				out = append(out, world.Versioned[pando.Instance]{V: i, Modified: r.Modified})
			}
		}
	}
	return out
}

// fleetTick is the time of a call to the store, as a durable write to a busy one takes. The events
// of a tick run on all processors. One tick has many commits of a large fleet.
const fleetTick = 5 * time.Millisecond

// followEvery is short: a large fleet makes 100,000 commits in a second of virtual time.
const followEvery = 20 * time.Millisecond

// fleetReportEvery is how often a long run prints its counts, in time of the machine.
const fleetReportEvery = time.Minute

// follow audits the commits since the last look, and compacts the store as a real one is.
func (f *fleet) follow() {
	all := f.registry.After(f.read)
	if len(all) == 0 {
		return
	}
	f.count(func(n *counts) { n.commits += len(all) })
	f.news <- all
	f.read = all[len(all)-1].Revision
	f.registry.Compact(f.read - min(f.read, 1000))
	if now := machineTime(); now-f.told > fleetReportEvery {
		f.report("so far")
		f.told = now
	}
}

// serve checks that every service has its instances, on hosts that are there.
func (f *fleet) serve() (err error) {
	f.catchUp()
	f.view(func(w *world.World) { err = f.serves(w) })
	return err
}

func (f *fleet) serves(w *world.World) error {
	for n := range f.size.services {
		k := keyOf(n)
		svc := w.Services[k].V
		spec, _ := w.SpecOf(k, svc.Current)
		serving := 0
		for _, i := range w.Of(k) {
			if _, there := w.Hosts[i.Host]; i.Phase == pando.PhaseInRotation && there {
				serving++
			}
		}
		if svc.Phase != pando.ServiceServing || svc.Current != svc.Target ||
			serving < spec.Scale.Min || serving > spec.Scale.Max {
			return fmt.Errorf("%s is %s (%s), %d in rotation of %d to %d", k, svc.Phase, svc.Reason,
				serving, spec.Scale.Min, spec.Scale.Max)
		}
	}
	return nil
}

// report prints the counts, and the pace of the simulation.
func (f *fleet) report(what string) {
	f.auditing.Lock()
	most := f.instancesMax
	f.auditing.Unlock()
	f.counting.Lock()
	defer f.counting.Unlock()
	took := machineTime() - f.began
	f.t.Logf("%s: %d hosts, %d services, at most %d instances, %d commits; %d asks answered, %d not;"+
		" %d hosts died, %d leaders, %d deploys; %s of machine time", what, f.size.hosts,
		f.size.services, most, f.n.commits, f.n.answered, f.n.unanswered, f.n.deaths,
		f.n.terms, f.n.deploys, took.Round(time.Second/10))
}
