package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func instance(id string, phase pando.Phase) pando.Instance {
	return pando.Instance{ID: pando.InstanceID(id), Service: pando.DefaultService("web"), Host: "h1",
		Phase: phase}
}

// newer is a record of a layout that this build does not know.
func newer(k pando.Key, at pando.StoreRevision) pando.Record {
	text := fmt.Sprintf(`{"layout":%d,"value":{}}`, currentLayout+1)
	return pando.Record{Key: k, Value: []byte(text), Created: 1, Modified: at}
}

func TestAnUnreadableRecordFreezesItsServiceOnly(t *testing.T) {
	web, other := pando.DefaultService("web"), pando.DefaultService("other")
	i := instance("web-1", pando.PhaseInRotation)
	unknown := i
	unknown.Phase = "levitating"
	dead := i
	dead.Phase = pando.PhaseDead
	for what, r := range map[string]pando.Record{
		"a newer layout":   newer(i.Key(), 5),
		"an unknown phase": encoded(t, i.Key(), unknown, 5),
		"a dead instance":  encoded(t, i.Key(), dead, 5),
		"garbage":          {Key: i.Key(), Value: []byte("\x00\xff{"), Modified: 5},
		"a service":        newer(web.Key(), 5),
		"a revision":       newer(pando.RevisionKey(web, 1), 5),
		"a head":           newer(pando.HeadKey(web), 5),
	} {
		w := New()
		if err := w.Apply([]pando.Record{encoded(t, i.Key(), i, 2)}, 2); err != nil {
			t.Fatal(err)
		}
		if err := w.Apply([]pando.Record{r}, 5); err == nil {
			t.Errorf("%s: no error", what)
		}
		if !errors.Is(w.Frozen(web), pando.ErrFrozen) || w.Frozen(other) != nil {
			t.Errorf("%s: web %v, other %v", what, w.Frozen(web), w.Frozen(other))
		}
		if got := w.Instances["web-1"].V; got.Phase != pando.PhaseInRotation {
			t.Errorf("%s: the instance is now %+v", what, got)
		}
		if w.Spares(pando.Txn{Delete: []pando.Key{r.Key}}) == nil {
			t.Errorf("%s: it may be deleted", what)
		}
		if err := w.Spares(pando.Txn{Delete: []pando.Key{other.Key()}}); err != nil {
			t.Errorf("%s: another record is not spared: %v", what, err)
		}
		if names := w.FrozenServices(); len(names) != 1 || names[0] != web || len(w.Unread()) != 1 {
			t.Errorf("%s: frozen %v, unread %v", what, names, w.Unread())
		}
		gone := pando.Record{Key: r.Key, Modified: 6}
		if err := w.Apply([]pando.Record{gone}, 6); err != nil || w.Frozen(web) != nil {
			t.Errorf("%s: after its deletion: %v, %v", what, err, w.Frozen(web))
		}
	}
}

func TestARecordThatCanBeReadAgainEndsTheFreeze(t *testing.T) {
	i := instance("web-1", pando.PhaseReady)
	w := New()
	if err := w.Apply([]pando.Record{newer(i.Key(), 3)}, 3); err == nil {
		t.Error("a newer layout is read")
	}
	if !w.Conceals("web-1") || w.Conceals("web-2") || !w.IsUnread(i.Key()) {
		t.Error("the record conceals another instance")
	}
	if err := w.Apply([]pando.Record{encoded(t, i.Key(), i, 4)}, 4); err != nil {
		t.Fatal(err)
	}
	if w.Frozen(i.Service) != nil || w.Conceals("web-1") || len(w.Unread()) != 0 {
		t.Errorf("it is frozen still: %v", w.Unread())
	}
}

func TestUnreadableHistoryFreezesNothing(t *testing.T) {
	w := New()
	_ = w.Apply([]pando.Record{newer("/pando/intent/default/web/i1", 2),
		newer("/pando/decision/default/web/d1", 2), newer(pando.HostKey("h2"), 2)}, 2)
	if err := w.Frozen(pando.DefaultService("web")); err != nil || len(w.Unread()) != 3 {
		t.Errorf("frozen: %v, unread: %v", err, w.Unread())
	}
	if w.Blind(pando.KindIntent) == nil || w.Blind(pando.KindService) != nil {
		t.Error("the world is blind to other kinds")
	}
}

// A snapshot replaces the world. A record in it that cannot be read keeps its last value; a record
// that it lacks is gone.
func TestASnapshotKeepsTheLastValueOfWhatCannotBeRead(t *testing.T) {
	a, b := instance("web-1", pando.PhaseInRotation), instance("web-2", pando.PhaseInRotation)
	w := New()
	if err := w.Apply([]pando.Record{encoded(t, a.Key(), a, 2), encoded(t, b.Key(), b, 3)},
		3); err != nil {
		t.Fatal(err)
	}
	w = w.Next()
	if err := w.Apply([]pando.Record{newer(a.Key(), 7)}, 8); err == nil {
		t.Error("a newer layout is read")
	}
	if got := w.Instances["web-1"]; got.V.ID != a.ID || got.Modified != 2 {
		t.Errorf("the unreadable instance is now %+v", got)
	}
	if _, ok := w.Instances["web-2"]; ok {
		t.Error("a deleted instance came back")
	}
	if err := w.Apply([]pando.Record{newer(b.Key(), 9)}, 9); err == nil {
		t.Error("a newer layout is read")
	}
	if _, ok := w.Instances["web-2"]; ok {
		t.Error("a value of an older snapshot came back later")
	}
}

// FuzzDecode: no stored bytes make the world panic, and none count as another object's.
func FuzzDecode(f *testing.F) {
	keys := []pando.Key{"/pando/service/default/web", "/pando/revision/default/web/00000001",
		"/pando/instance/default/web/h1/web-1", "/pando/intent/default/web/i1",
		"/pando/decision/default/web/d1", "/pando/head/default/web", "/pando/host/h1",
		"/pando/member/h1", "/pando/leader/control", "/pando/", "/pando/instance/", "/elsewhere"}
	whole, err := Encode(instance("web-1", pando.PhaseReady))
	if err != nil {
		f.Fatal(err)
	}
	for n := range keys {
		f.Add(n, []byte(`{"layout":1,"value":{"id":"web-1","phase":"ready"}}`))
		f.Add(n, whole)
		f.Add(n, []byte(`{"layout":99,"value":null}`))
		f.Add(n, []byte(``))
	}
	f.Fuzz(func(t *testing.T, n int, value []byte) {
		k := keys[((n%len(keys))+len(keys))%len(keys)]
		r := pando.Record{Key: k, Value: value, Created: 1, Modified: 1}
		if value == nil {
			r.Value = []byte{}
		}
		w := New()
		err := w.Apply([]pando.Record{r}, 1)
		if (err != nil) != w.IsUnread(k) {
			t.Errorf("error %v, unread %v", err, w.IsUnread(k))
		}
		for id, i := range w.Instances {
			if id != i.V.ID || i.V.Key() != k || i.V.Check() != nil {
				t.Errorf("%s is read as %+v", value, i.V)
			}
		}
		if _, err := json.Marshal(w.Unread()); err != nil {
			t.Error(err)
		}
	})
}

// moody answers every call with the next of its errors.
type moody struct {
	pando.Registry
	errs []error
}

func (m *moody) next() (err error) {
	if len(m.errs) > 0 {
		err, m.errs = m.errs[0], m.errs[1:]
	}
	return err
}

func (m *moody) Snapshot(context.Context, pando.Key) (pando.Snapshot, error) {
	return pando.Snapshot{Revision: 1}, m.next()
}

func (m *moody) Watch(
	ctx context.Context, _ pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	c := make(chan pando.Batch, 1)
	if err := m.next(); err != nil {
		c <- pando.Batch{Revision: after, Err: err}
		close(c)
		return c
	}
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }
func (wallClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func TestFollowSurvivesEveryErrorOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		odd := errors.New("rpc error: code = Internal")
		m := &moody{errs: []error{odd, odd, odd, pando.ErrUnavailable, pando.ErrStoreFull,
			pando.ErrForbidden, nil, odd, nil, pando.ErrCompacted, odd}}
		ctx, cancel := context.WithCancel(t.Context())
		snapshots, told := 0, []string{}
		ended := make(chan error)
		go func() {
			ended <- Follow(ctx, wallClock{}, m, pando.Root,
				func(_ pando.Batch, reset bool) { snapshots++ },
				func(err error) { told = append(told, err.Error()) })
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(m.errs) > 0 || snapshots != 3 {
			t.Errorf("%d errors are left, %d snapshots", len(m.errs), snapshots)
		}
		if len(told) != 5 { // odd once, full, forbidden; odd after each good snapshot
			t.Errorf("told %d: %q", len(told), told)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Two processes that lose the store at one moment come back at different times.
func TestWaitsForTheStoreDiffer(t *testing.T) {
	seen := map[time.Duration]bool{}
	for n := range 100 {
		wait := jittered(time.Second, time.Unix(5, int64(n)*9_973))
		if seen[wait] = true; wait < time.Second || wait > 3*time.Second/2 {
			t.Errorf("a wait of 1 s became %s", wait)
		}
	}
	if len(seen) < 50 {
		t.Errorf("100 processes have %d waits", len(seen))
	}
}
