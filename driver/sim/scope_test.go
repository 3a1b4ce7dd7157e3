package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// follower is a process that follows one fixed kind, and of another kind only some services.
type follower struct {
	mu     sync.Mutex
	w      *world.World
	wanted map[pando.ServiceKey]bool
	stale  bool
	resets int
}

func (f *follower) scope() world.Scope {
	return world.Scope{
		Fixed: []pando.Key{pando.KindHead.Under()},
		Once:  []pando.Key{pando.KindMember.Under()},
		Wanted: func(fixed []pando.Record) map[pando.Key]bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			if fixed == nil && !f.stale {
				return nil
			}
			f.stale = false
			out := map[pando.Key]bool{}
			for s := range f.wanted {
				out[pando.InstancesOn(s, "h1")] = true
			}
			return out
		},
		Keys: func(p pando.Key) []pando.Key {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.w.Keys(p)
		},
		Left: func(p pando.Key) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.w.Leave(p)
		},
		Take: func(b pando.Batch, reset bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if reset {
				f.w = f.w.Next()
				f.resets++
			}
			_ = f.w.Apply(b.Changes, b.Revision)
		},
		Odd: func(error) {},
	}
}

// want changes the services that the follower wants. The next batch makes it look.
func (f *follower) want(services ...pando.ServiceKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted, f.stale = map[pando.ServiceKey]bool{}, true
	for _, s := range services {
		f.wanted[s] = true
	}
}

func (f *follower) instances() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.w.On("h1") {
		all = append(all, string(i.ID))
	}
	return all
}

func TestAScopeGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		r := NewRegistry(1, 5*time.Millisecond)
		a, b := pando.DefaultService("a"), pando.DefaultService("b")
		at := func(s pando.ServiceKey, n int) pando.Instance {
			return pando.Instance{
				ID: pando.InstanceID(fmt.Sprintf("%s-%d", s.Name, n)), Service: s, Host: "h1",
				Phase: pando.PhaseReady, Born: time.Unix(int64(n), 0),
			}
		}
		commit := func(txn pando.Txn) {
			t.Helper()
			if _, err := r.Commit(ctx, txn); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		put := func(v ...pando.Stored) { t.Helper(); commit(pando.Txn{Put: v}) }
		f := &follower{w: world.New()}
		want := func(names string) {
			t.Helper()
			if got := strings.Join(f.instances(), " "); got != names {
				t.Errorf("the follower has %q, want %q", got, names)
			}
		}
		put(at(a, 1), at(b, 1), pando.Member{Name: "h1"})
		f.want(a)
		ended := make(chan error)
		go func() { ended <- world.FollowScope(ctx, Clock{}, r, f.scope()) }()
		time.Sleep(time.Second)
		want("a-1")
		put(at(a, 2), at(b, 2))
		want("a-1 a-2")

		f.want(a, b)
		ghost := at(b, 9) // learned from an answer, and deleted before its prefix was followed
		f.mu.Lock()
		f.w.Committed(pando.Txn{Put: []pando.Stored{ghost}}, 1)
		f.mu.Unlock()
		put(pando.StateHead{Service: a}) // any news
		want("a-1 b-1 a-2 b-2")

		f.want(b)
		put(pando.StateHead{Service: a, Merges: 1})
		want("b-1 b-2")
		put(at(a, 3))
		want("b-1 b-2")

		r.Fail(pando.ErrUnavailable)
		time.Sleep(3 * time.Second)
		r.Fail(nil)
		commit(pando.Txn{Delete: []pando.Key{at(b, 1).Key()}})
		time.Sleep(5 * time.Second)
		want("b-2")
		f.mu.Lock()
		if len(f.w.Members) != 1 || len(f.w.Heads) != 1 || f.resets < 1 {
			t.Errorf("the follower has %d members and %d heads after %d snapshots", len(f.w.Members),
				len(f.w.Heads), f.resets)
		}
		f.mu.Unlock()
		cancel()
		<-ended
	})
}
