// Package decidetest lays the world of a decision on a table: hosts, services and their instances.
// The tests of control and of control/decide share it.
//
// A table has no store, no agent and no time of its own: a test says when time passes.
package decidetest

import (
	"fmt"
	"reflect"
	"strconv"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

// T0 is the time at which a table begins.
var T0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Web is the service of most tables.
var Web = pando.DefaultService("web")

// Counting names things in order.
type Counting struct{ n int }

// Instance implements pando.IDs.
func (c *Counting) Instance(s pando.ServiceName) pando.InstanceID {
	c.n++
	return pando.InstanceID(fmt.Sprintf("%s-%d", s, c.n))
}

// Sequential implements pando.IDs.
func (c *Counting) Sequential(now time.Time) string {
	c.n++
	return fmt.Sprintf("%020d%06d", now.UnixNano(), c.n) // sorts by the writer's clock, as a daemon's
}

// Table is a world that applies decisions as the store would.
type Table struct {
	T   *testing.T
	W   *world.World
	IDs *Counting
	Rev pando.StoreRevision
	Now time.Time // of control's clock
	// skew is how far the clock of the hosts is ahead of control's.
	Skew time.Duration
}

// Clock returns a clock that shows the time of the table. Its timers never end.
func (tb *Table) Clock() pando.Clock { return stopped{tb} }

type stopped struct{ tb *Table }

func (s stopped) Now() time.Time { return s.tb.Now }

func (s stopped) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

// New returns a table with the host h1 and no service.
func New(t *testing.T) *Table {
	tb := &Table{T: t, W: world.New(), IDs: &Counting{}, Now: T0}
	tb.Put(pando.Host{Name: "h1"})
	return tb
}

// Ask writes an ask of an instance of web on h1.
func (tb *Table) Ask(v pando.Verb, by pando.InstanceID) pando.IntentID {
	id := pando.IntentID(tb.IDs.Sequential(tb.Now))
	i := pando.Intent{ID: id, Service: Web, Verb: v,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(by)}, Host: "h1"}
	if v == pando.VerbHalt {
		i.Instance = by
	}
	tb.Put(i.Become(pando.IntentAsked, tb.Now, "load"))
	return id
}

// Commit applies a transaction as the store would, at control's time.
func (tb *Table) Commit(t pando.Txn, at pando.StoreRevision) {
	tb.W.At(tb.Now)
	tb.W.Committed(t, at)
}

// Count returns the number of instances of web in a phase.
func (tb *Table) Count(p pando.Phase) int {
	n := 0
	for _, i := range tb.W.Of(Web) {
		if i.Phase == p {
			n++
		}
	}
	return n
}

// Crash lets this many instances of a revision serve for a moment and then fail, one after the
// other.
func (tb *Table) Crash(revision, times int) {
	tb.T.Helper()
	for tries := 0; times > 0; tries++ {
		if tries == 1000 {
			tb.T.Fatalf("revision %d is not started %d times more", revision, times)
		}
		tb.Settle()
		tb.Run()
		for _, i := range tb.W.Of(Web) {
			if i.Revision == revision && i.Capacity() && times > 0 {
				tb.Fail(i, 1)
				times--
			}
		}
		tb.Now = tb.Now.Add(100 * time.Millisecond)
	}
	tb.Settle()
}

// Deploy writes a revision of web with 2 to 4 instances, or what change makes of it, as the target.
func (tb *Table) Deploy(number int, change func(*pando.Spec)) {
	spec := pando.Spec{Name: "web", Command: []string{"true", strconv.Itoa(number)},
		Scale: pando.Scale{Min: 2, Max: 4}}
	if change != nil {
		change(&spec)
	}
	svc := tb.W.Services[Web].V
	svc.ServiceKey, svc.Target, svc.Latest = Web, number, number
	tb.Put(svc, pando.Revision{Service: Web, Number: number, Spec: spec.WithDefaults()},
		pando.Decision{
			ID: tb.IDs.Sequential(tb.Now), Service: Web, Kind: pando.DecidedDeploy, At: tb.Now,
		})
}

// endpoints checks that agents can follow the service: its compact record is that of its records.
func (tb *Table) endpoints() {
	tb.T.Helper()
	svc, ok := tb.W.Services[Web]
	spec, _ := tb.W.SpecOf(Web, svc.V.Target)
	want := pando.EndpointsOf(svc.V, spec, append(tb.W.Of(Web), world.RunsOf(tb.W, Web)...))
	if got, there := tb.W.Endpoints[Web]; there != ok || ok && !reflect.DeepEqual(got.V, want) {
		tb.T.Errorf("the endpoints of web are %+v (%v), want %+v (%v)", got.V, there, want, ok)
	}
}

// Fail ends an instance as its agent does when the program exits. It adds the decision and deletes
// the record.
func (tb *Table) Fail(i pando.Instance, code float64) {
	tb.Put(pando.Decision{
		ID: tb.IDs.Sequential(tb.HostNow()), Service: Web, Instance: i.ID, Kind: pando.DecidedFailed,
		At:     tb.HostNow(),
		Reason: "it exited", Inputs: map[string]float64{"exit_code": code},
		Lines: []string{string(i.ID) + " says why"},
	})
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.Rev)
}

// Fits checks that a decision fits one transaction of the store, with room to spare.
func (tb *Table) Fits(t pando.Txn) {
	tb.T.Helper()
	const most = 300
	keys := map[pando.Key]bool{}
	for _, v := range t.Put {
		keys[v.Key()] = true
	}
	for _, k := range t.Delete {
		keys[k] = true
	}
	if n := len(t.Put) + len(t.Delete); n > most || len(t.If) > most || len(keys) != n {
		tb.T.Fatalf("a decision writes %d records (%d keys) under %d "+
			"conditions, want at most %d, each once", n, len(keys), len(t.If), most)
	}
}

// HostNow returns the time of the hosts' clock.
func (tb *Table) HostNow() time.Time { return tb.Now.Add(tb.Skew) }

// Put commits records as another writer would.
func (tb *Table) Put(v ...pando.Stored) {
	tb.Rev++
	tb.Commit(pando.Txn{Put: v}, tb.Rev)
}

// Run makes every placed instance serve and every draining one die, as an agent would.
func (tb *Table) Run() {
	for _, i := range tb.W.Of(Web) {
		switch {
		case i.Phase == pando.PhasePlaced && i.Warm:
			i.Phase = pando.PhaseWarm
			tb.Put(i)
		case i.Phase == pando.PhasePlaced:
			i.Phase, i.Since = pando.PhaseInRotation, tb.HostNow()
			tb.Put(i)
		case i.Phase == pando.PhaseDraining:
			tb.Rev++
			tb.Commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.Rev)
		}
	}
}

// Settle decides until nothing more is to be written.
func (tb *Table) Settle() {
	for range 50 {
		txn, _ := decide.Decide(tb.W, Web, tb.Now, tb.IDs)
		if len(txn.Put)+len(txn.Delete) == 0 {
			tb.endpoints()
			return
		}
		tb.Fits(txn)
		tb.Rev++
		tb.Commit(txn, tb.Rev)
	}
	tb.T.Fatalf("the decisions do not settle")
}

// Failures returns the failures of web in a row, as `pando status` shows them.
func (tb *Table) Failures() int { return decide.Failures(tb.W.DecisionsOf(Web)) }

// Pass lets time pass in steps of 100 ms, in which the hosts and control do what is due. fails
// decides whether an instance in rotation ends now, with the exit code.
func (tb *Table) Pass(d time.Duration, fails func(pando.Instance) (code float64, now bool)) {
	tb.T.Helper()
	for end := tb.Now.Add(d); tb.Now.Before(end); {
		tb.Settle()
		tb.Run()
		for _, i := range tb.W.Of(Web) {
			if i.Phase != pando.PhaseInRotation || fails == nil {
				continue
			}
			if code, now := fails(i); now {
				tb.Fail(i, code)
			}
		}
		tb.Now = tb.Now.Add(100 * time.Millisecond)
	}
	tb.Settle()
}

// Reload replaces the world by one that has just read the store.
func (tb *Table) Reload() {
	tb.T.Helper()
	var all []pando.Record
	add := func(v pando.Stored, modified pando.StoreRevision) {
		b, err := world.Encode(v)
		if err != nil {
			tb.T.Fatal(err)
		}
		all = append(all, pando.Record{Key: v.Key(), Value: b, Created: tb.W.CreatedOf(v.Key()),
			Modified: modified})
	}
	for _, v := range tb.W.Services {
		add(v.V, v.Modified)
	}
	for _, m := range tb.W.Revisions {
		for _, v := range m {
			add(v.V, v.Modified)
		}
	}
	for _, v := range tb.W.Instances {
		add(v.V, v.Modified)
	}
	for _, v := range tb.W.Intents {
		add(v.V, v.Modified)
	}
	for _, v := range tb.W.Decisions {
		add(v.V, v.Modified)
	}
	for _, v := range tb.W.Hosts {
		add(v.V, v.Modified)
	}
	for _, v := range tb.W.Endpoints {
		add(v.V, v.Modified)
	}
	tb.W = world.New()
	tb.W.At(tb.Now)
	if err := tb.W.Apply(all, tb.Rev); err != nil {
		tb.T.Fatal(err)
	}
}

// Finds writes a finding of the gate.
func (tb *Table) Finds(c pando.Compared) {
	svc := tb.W.Services[Web].V
	trial := *svc.Trial
	trial.Compared = &c
	svc.Trial = &trial
	tb.Put(svc)
	tb.Settle()
}

// Pin sets the fixed number of instances of web, or removes it.
func (tb *Table) Pin(p *pando.Pin) {
	svc := tb.W.Services[Web].V
	svc.Pin = p
	tb.Put(svc)
}

// Notes returns the decisions of control to wait.
func (tb *Table) Notes() (out []string) {
	for _, v := range tb.W.DecisionsOf(Web) {
		if v.Kind == pando.DecidedHostLost {
			out = append(out, v.Reason)
		}
	}
	return out
}

// Serves returns a function that reports whether one instance of a revision serves, and no other.
func (tb *Table) Serves(revision int) func() bool {
	return func() bool {
		all := tb.W.Of(Web)
		svc := tb.W.Services[Web].V
		return len(all) == 1 && all[0].Phase == pando.PhaseInRotation && all[0].Revision == revision &&
			svc.Phase == pando.ServiceServing && svc.Current == revision
	}
}

// Until settles the table and lets instances take their steps until done returns true. It fails
// when two instances have a record.
func (tb *Table) Until(what string, done func() bool) {
	tb.T.Helper()
	for range 300 {
		tb.Settle()
		if all := tb.W.Of(Web); len(all) > 1 {
			tb.T.Fatalf("%s: %d instances of one writer are there: %v", what, len(all), all)
		}
		if done() {
			return
		}
		if tb.Now = tb.Now.Add(100 * time.Millisecond); tb.Now.Nanosecond() == 0 {
			tb.Run() // once per second, so that drains take time
		}
	}
	tb.T.Fatalf("%s: it never comes to that: %+v, %v", what, tb.W.Services[Web].V, tb.W.Of(Web))
}

// Asks answers one ask for an instance.
func (tb *Table) Asks(k pando.ServiceKey) pando.Intent {
	ask := pando.Intent{
		ID: pando.IntentID(tb.IDs.Sequential(tb.Now)), Service: k, Verb: pando.VerbReplicate,
		Host: "h1", By: pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, tb.Now, "more")
	txn, _ := decide.Decide(tb.W, k, tb.Now, tb.IDs, ask)
	tb.Rev++
	tb.Commit(txn, tb.Rev)
	world.Publish(tb.W, txn, tb.Now)
	tb.Now = tb.Now.Add(100 * time.Millisecond)
	return tb.W.Intents[ask.ID].V
}

// Remove removes web as `pando rm` does, until its instances are gone.
func (tb *Table) Remove() {
	svc := tb.W.Services[Web].V
	svc.Removing = true
	tb.Put(svc)
	tb.Settle()
	tb.Run()
	tb.Settle()
}

// Create writes a service at its first revision.
func (tb *Table) Create(k pando.ServiceKey, s pando.Spec) {
	s.Name, s.Tenant, s.Command = k.Name, k.Tenant, []string{"true"}
	tb.Put(pando.Service{ServiceKey: k, Target: 1, Latest: 1},
		pando.Revision{Service: k, Number: 1, Spec: s.WithDefaults()})
}

// SettleOn decides about a service until nothing more is to be written.
func (tb *Table) SettleOn(k pando.ServiceKey) {
	tb.T.Helper()
	for range 50 {
		txn, _ := decide.Decide(tb.W, k, tb.Now, tb.IDs)
		if len(txn.Put)+len(txn.Delete) == 0 {
			return
		}
		tb.Rev++
		tb.Commit(txn, tb.Rev)
		world.Publish(tb.W, txn, tb.Now)
	}
	tb.T.Fatalf("the decisions about %s do not settle", k)
}
