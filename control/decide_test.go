package control

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// counting names things in order.
type counting struct{ n int }

func (c *counting) Instance(s pando.ServiceName) pando.InstanceID {
	c.n++
	return pando.InstanceID(fmt.Sprintf("%s-%d", s, c.n))
}

func (c *counting) Sequential(now time.Time) string {
	c.n++
	return fmt.Sprintf("%020d%06d", now.UnixNano(), c.n) // sorts by the writer's clock, as a daemon's
}

// table is a world that applies decisions as the store would.
type table struct {
	t   *testing.T
	w   *world.World
	ids *counting
	rev pando.StoreRevision
	now time.Time // of control's clock
	// skew is how far the clock of the hosts is ahead of control's.
	skew time.Duration
}

// commit applies a transaction as the store would, at control's time.
func (tb *table) commit(t pando.Txn, at pando.StoreRevision) {
	tb.w.At(tb.now)
	tb.w.Committed(t, at)
}

// hostNow returns the time of the hosts' clock.
func (tb *table) hostNow() time.Time { return tb.now.Add(tb.skew) }

func newTable(t *testing.T) *table {
	tb := &table{t: t, w: world.New(), ids: &counting{}, now: t0}
	tb.put(pando.Host{Name: "h1"})
	return tb
}

// serving returns a table with the service web in rotation at its first revision.
func serving(t *testing.T) *table {
	tb := newTable(t)
	tb.deploy(1, nil)
	tb.settle()
	tb.run()
	tb.settle()
	return tb
}

func (tb *table) put(v ...pando.Stored) {
	tb.rev++
	tb.commit(pando.Txn{Put: v}, tb.rev)
}

var web = pando.DefaultService("web")

func (tb *table) deploy(number int, change func(*pando.Spec)) {
	spec := pando.Spec{Name: "web", Command: []string{"true", strconv.Itoa(number)},
		Scale: pando.Scale{Min: 2, Max: 4}}
	if change != nil {
		change(&spec)
	}
	svc := tb.w.Services[web].V
	svc.ServiceKey, svc.Target, svc.Latest = web, number, number
	tb.put(svc, pando.Revision{Service: web, Number: number, Spec: spec.WithDefaults()},
		pando.Decision{
			ID: tb.ids.Sequential(tb.now), Service: web, Kind: pando.DecidedDeploy, At: tb.now,
		})
}

// endpoints checks that agents can follow the service: its compact record is that of its records.
func (tb *table) endpoints() {
	tb.t.Helper()
	svc, ok := tb.w.Services[web]
	spec, _ := tb.w.SpecOf(web, svc.V.Target)
	want := pando.EndpointsOf(svc.V, spec, append(tb.w.Of(web), world.RunsOf(tb.w, web)...))
	if got, there := tb.w.Endpoints[web]; there != ok || ok && !reflect.DeepEqual(got.V, want) {
		tb.t.Errorf("the endpoints of web are %+v (%v), want %+v (%v)", got.V, there, want, ok)
	}
}

// settle decides until nothing more is to be written.
func (tb *table) settle() {
	for range 50 {
		txn, _ := Decide(tb.w, web, tb.now, tb.ids)
		if len(txn.Put)+len(txn.Delete) == 0 {
			tb.endpoints()
			return
		}
		tb.fits(txn)
		tb.rev++
		tb.commit(txn, tb.rev)
	}
	tb.t.Fatalf("the decisions do not settle")
}

// fits checks that a decision fits one transaction of the store, with room to spare.
func (tb *table) fits(t pando.Txn) {
	tb.t.Helper()
	const most = 300
	keys := map[pando.Key]bool{}
	for _, v := range t.Put {
		keys[v.Key()] = true
	}
	for _, k := range t.Delete {
		keys[k] = true
	}
	if n := len(t.Put) + len(t.Delete); n > most || len(t.If) > most || len(keys) != n {
		tb.t.Fatalf("a decision writes %d records (%d keys) under %d "+
			"conditions, want at most %d, each once", n, len(keys), len(t.If), most)
	}
}

// run makes every placed instance serve and every draining one die, as an agent would.
func (tb *table) run() {
	for _, i := range tb.w.Of(web) {
		switch {
		case i.Phase == pando.PhasePlaced && i.Warm:
			i.Phase = pando.PhaseWarm
			tb.put(i)
		case i.Phase == pando.PhasePlaced:
			i.Phase, i.Since = pando.PhaseInRotation, tb.hostNow()
			tb.put(i)
		case i.Phase == pando.PhaseDraining:
			tb.rev++
			tb.commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.rev)
		}
	}
}

// fail ends an instance as its agent does when the program exits. It adds the decision and deletes
// the record.
func (tb *table) fail(i pando.Instance, code float64) {
	tb.put(pando.Decision{
		ID: tb.ids.Sequential(tb.hostNow()), Service: web, Instance: i.ID, Kind: pando.DecidedFailed,
		At:     tb.hostNow(),
		Reason: "it exited", Inputs: map[string]float64{"exit_code": code},
		Lines: []string{string(i.ID) + " says why"},
	})
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.rev)
}

// crash lets this many instances of a revision serve for a moment and then fail, one after the
// other.
func (tb *table) crash(revision, times int) {
	tb.t.Helper()
	for tries := 0; times > 0; tries++ {
		if tries == 1000 {
			tb.t.Fatalf("revision %d is not started %d times more", revision, times)
		}
		tb.settle()
		tb.run()
		for _, i := range tb.w.Of(web) {
			if i.Revision == revision && i.Capacity() && times > 0 {
				tb.fail(i, 1)
				times--
			}
		}
		tb.now = tb.now.Add(100 * time.Millisecond)
	}
	tb.settle()
}

func (tb *table) count(p pando.Phase) int {
	n := 0
	for _, i := range tb.w.Of(web) {
		if i.Phase == p {
			n++
		}
	}
	return n
}

func (tb *table) ask(v pando.Verb, by pando.InstanceID) pando.IntentID {
	id := pando.IntentID(tb.ids.Sequential(tb.now))
	i := pando.Intent{ID: id, Service: web, Verb: v,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(by)}, Host: "h1"}
	if v == pando.VerbHalt {
		i.Instance = by
	}
	tb.put(i.Become(pando.IntentAsked, tb.now, "load"))
	return id
}

func TestANewServiceGetsAddressesAndItsMinimum(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, nil)
	tb.settle()
	svc := tb.w.Services[web].V
	if !svc.VIP4.IsValid() || !pando.VIPs4.Contains(svc.VIP4) || !pando.VIPs6.Contains(svc.VIP6) ||
		svc.VIP4 == pando.Gateway4 {
		t.Errorf("VIPs %s, %s", svc.VIP4, svc.VIP6)
	}
	if n := tb.count(pando.PhasePlaced); n != 2 || svc.Phase != pando.ServiceDeploying {
		t.Errorf("%d placed, %s; want 2, deploying", n, svc.Phase)
	}
	tb.run()
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceServing || svc.Current != 1 {
		t.Errorf("%s at revision %d, want serving at 1", svc.Phase, svc.Current)
	}
}

// A ready instance whose table is not yet in force gets no flow. A deploy that waits must not say
// that the service serves.
func TestAReadyInstanceDoesNotServeBeforeItsTable(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, nil)
	tb.settle()
	for _, i := range tb.w.Of(web) {
		tb.put(i.Become(pando.PhaseStarting, tb.now, "runs").Become(pando.PhaseReady, tb.now, "answers"))
	}
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceDeploying || svc.Current != 0 {
		t.Errorf("%s at revision %d, want deploying: %s", svc.Phase, svc.Current, svc.Reason)
	}
	for _, i := range tb.w.Of(web) {
		tb.put(i.Become(pando.PhaseInRotation, tb.now, "steered to"))
	}
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceServing || svc.Current != 1 {
		t.Errorf("%s at revision %d, want serving at 1: %s", svc.Phase, svc.Current, svc.Reason)
	}
}

func TestAsksAreAnsweredWithinTheBudget(t *testing.T) {
	tb := serving(t)
	first := tb.w.Of(web)[0].ID
	second := tb.w.Of(web)[1].ID
	a, b := tb.ask(pando.VerbReplicate, first), tb.ask(pando.VerbReplicate, second)
	tb.settle()
	if s := tb.w.Intents[a].V.State; s != pando.IntentPlaced {
		t.Errorf("the first ask is %s, want placed", s)
	}
	i := tb.w.Intents[b].V
	if i.State != pando.IntentCoalesced || i.Instance != tb.w.Intents[a].V.Instance {
		t.Errorf("the ask of the same moment is %s with %s", i.State, i.Instance)
	}
	tb.now = tb.now.Add(time.Second)
	c := tb.ask(pando.VerbReplicate, first)
	tb.settle()
	tb.now = tb.now.Add(time.Second)
	d := tb.ask(pando.VerbReplicate, first)
	tb.settle()
	if s := tb.w.Intents[c].V.State; s != pando.IntentPlaced {
		t.Errorf("the third ask is %s, want placed (4 of 4)", s)
	}
	if i := tb.w.Intents[d].V; i.State != pando.IntentRefused || !strings.Contains(i.Reason, "max 4") {
		t.Errorf("the fifth instance is %s: %s", i.State, i.Reason)
	}
}

func TestAWarmInstanceIsClaimedBeforeANewOneIsMade(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 4, Warm: 1} })
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.count(pando.PhaseWarm); n != 1 {
		t.Fatalf("%d warm, want 1", n)
	}
	ask := tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
	tb.settle()
	i := tb.w.Instances[tb.w.Intents[ask].V.Instance].V
	if i.Warm || i.Phase != pando.PhasePlaced || !strings.Contains(i.Reason, "warm") {
		t.Errorf("placed %+v, want the warm one", i)
	}
	tb.run()
	tb.settle()
	tb.run()
	if n := tb.count(pando.PhaseWarm); n != 1 {
		t.Errorf("the reserve is not filled again: %d warm", n)
	}
}

func TestAPinHoldsAndEnds(t *testing.T) {
	tb := serving(t)
	svc := tb.w.Services[web].V
	svc.Pin = &pando.Pin{Instances: 3, Until: tb.now.Add(time.Minute),
		By: pando.Asker{Kind: pando.AskerOperator}, Before: 2}
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 3 {
		t.Errorf("%d in rotation, pinned 3", n)
	}
	_, wake := Decide(tb.w, web, tb.now, tb.ids)
	if !wake.Equal(svc.Pin.Until) {
		t.Errorf("looks again at %s, the pin ends at %s", wake, svc.Pin.Until)
	}
	tb.now = wake
	tb.settle()
	if tb.w.Services[web].V.Pin != nil {
		t.Errorf("the pin is still there")
	}
	if n := tb.count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d in rotation after the pin, before it there were 2", n)
	}
	svc = tb.w.Services[web].V
	svc.Pin = &pando.Pin{Instances: 1}
	tb.put(svc)
	tb.settle()
	tb.run()
	if n := tb.count(pando.PhaseInRotation); n != 1 {
		t.Errorf("%d in rotation, pinned 1", n)
	}
}

func TestARolloutReplacesOneByOneAndAFailureRollsBack(t *testing.T) {
	tb := serving(t)
	tb.deploy(2, func(s *pando.Spec) { s.Command = []string{"false"} })
	for range 20 {
		tb.settle()
		if n := tb.count(pando.PhaseInRotation); n < 2 {
			t.Fatalf("%d in rotation during the rollout", n)
		}
		tb.run()
		tb.now = tb.now.Add(time.Second)
	}
	if svc := tb.w.Services[web].V; svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Fatalf("revision %d, %s; want 2, serving", svc.Current, svc.Phase)
	}
	tb.deploy(3, nil)
	tb.crash(3, 3)
	svc := tb.w.Services[web].V
	if svc.Target != 2 || tb.w.Revisions[web][3].V.State != pando.RevisionFailed {
		t.Errorf("target %d, revision 3 is %s; want 2, failed",
			svc.Target, tb.w.Revisions[web][3].V.State)
	}
	if n := tb.count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d in rotation after the rollback", n)
	}
}

func TestARollbackTakesOutWhatTheSameDecisionPlacesOnlyAfterwards(t *testing.T) {
	tb := serving(t)
	tb.deploy(2, nil)
	tb.crash(2, 2)
	tb.settle()
	for _, i := range tb.w.Of(web) {
		if i.Revision == 2 {
			tb.fail(i, 1)
		}
	}
	tb.now = tb.now.Add(time.Second)
	ask := tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
	txn, _ := Decide(tb.w, web, tb.now, tb.ids)
	placed := 0
	for _, v := range txn.Put {
		if i, ok := v.(pando.Instance); ok && i.Intent == ask {
			if placed++; i.Phase != pando.PhasePlaced {
				t.Errorf("%s is born %s", i.ID, i.Phase)
			}
		}
	}
	if placed != 1 {
		t.Fatalf("%d instances are placed for the ask, want 1", placed)
	}
	tb.rev++
	tb.commit(txn, tb.rev)
	tb.settle()
	if i := tb.w.Intents[ask].V.Instance; tb.w.Instances[i].V.Phase != pando.PhaseDraining {
		t.Errorf("an instance of the revision that failed is %s", tb.w.Instances[i].V.Phase)
	}
}

func TestARemovedServiceLeavesNoRecord(t *testing.T) {
	tb := serving(t)
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc, pando.StateHead{Service: web})
	tb.settle()
	tb.run()
	tb.settle()
	if len(tb.w.Services)+len(tb.w.Instances)+len(tb.w.Intents)+len(tb.w.Decisions)+
		len(tb.w.Revisions) != 0 {
		t.Errorf("left: %d services, %d instances, %d intents, %d decisions",
			len(tb.w.Services), len(tb.w.Instances), len(tb.w.Intents), len(tb.w.Decisions))
	}
	if len(tb.w.Heads) != 1 {
		t.Errorf("its state is gone without a purge")
	}
}

// A service with `min: 0` serves without an instance. A pin starts some, and they leave with it.
func TestAServiceMayHaveNoInstance(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Zero: true, Max: 4} })
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceServing || len(tb.w.Of(web)) != 0 {
		t.Fatalf("it is %s (%s) with %d instances", svc.Phase, svc.Reason, len(tb.w.Of(web)))
	}
	svc := tb.w.Services[web].V
	svc.Pin = &pando.Pin{Instances: 2, Until: tb.now.Add(time.Minute)}
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 2 {
		t.Fatalf("%d instances are in rotation, the pin is 2", n)
	}
	tb.now = tb.now.Add(2 * time.Minute)
	tb.settle()
	if n := tb.count(pando.PhaseDraining); n != 2 || tb.w.Services[web].V.Pin != nil {
		t.Errorf("%d instances drain after the pin, want 2", n)
	}
}
