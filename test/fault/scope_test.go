package fault

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// specOf returns a revision with a password in its environment.
func specOf(s pando.ServiceKey) pando.Revision {
	return pando.Revision{Service: s, Number: 1, Spec: pando.Spec{
		Name: s.Name, Environment: map[string]string{"PASSWORD": "hunter2"},
	}}
}

// records returns the number of records that a registry reads under a prefix.
func records(t *testing.T, r *etcd.Registry, k pando.Key) int {
	t.Helper()
	got, err := r.Snapshot(t.Context(), k)
	if err != nil {
		t.Fatalf("read %s*: %v", k, err)
	}
	return len(got.Records)
}

func TestAMemberReadsItsPartOfTheStore(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	mine, theirs := placed(t, s)
	write(t, s, specOf(web), specOf(vault), pando.Endpoints{Service: pando.Service{ServiceKey: vault}})
	r, _ := enter(t, at, member(t, a, "h2"))
	for k, want := range map[pando.Key]int{
		pando.KindEndpoints.Under():                1, // of all services
		pando.KindService.Under():                  2,
		pando.KindHead.Under():                     1,
		pando.KindMember.Under():                   1,
		pando.InstancesOn(web, "h2"):               1,
		mine.Key():                                 1,
		pando.RevisionsOf(web):                     1,
		pando.Intent{Service: web}.Key():           1,
		pando.Intent{Service: web, ID: "i1"}.Key(): 1,
		pando.RevisionsOf(vault):                   0, // it is on h1: the answer has no records
		pando.Intent{Service: vault}.Key():         0,
	} {
		if got := records(t, r, k); got != want {
			t.Errorf("h2 reads %d records of %s*, want %d", got, k, want)
		}
	}
	before := s.Refusals("h2")
	if before.Refused != 0 || before.Withheld != 2 {
		t.Errorf("an agent's reads count as %+v, want none refused and 2 withheld", before)
	}
	if _, err := r.Snapshot(t.Context(), pando.InstancesOn(vault, "h1")); !errors.Is(err,
		pando.ErrForbidden) {
		t.Errorf("h2 reads %s: %v", theirs.Key(), err)
	}
	// The vault gets an instance on h2, and leaves it.
	moved := theirs
	moved.Host, moved.ID = "h2", "vault-2"
	write(t, s, moved)
	if got := records(t, r, pando.RevisionsOf(vault)); got != 1 {
		t.Errorf("h2 reads %d specs of a service that came to it", got)
	}
	if _, err := s.Registry().Commit(t.Context(),
		pando.Txn{Delete: []pando.Key{moved.Key()}}); err != nil {
		t.Fatal(err)
	}
	if got := records(t, r, pando.RevisionsOf(vault)); got != 0 {
		t.Errorf("h2 reads %d specs of a service that has left it", got)
	}
}

// A member with any client gets no record of another tenant. Each attempt is refused with its cause
// and counted.
func TestReadsOfOtherTenantsAreRefused(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	_, theirs := placed(t, s)
	write(t, s, specOf(web), specOf(vault))
	i := member(t, a, "h2")
	_, f := enter(t, at, i)
	c := etcdAs(t, at, i)
	secret := string(pando.RevisionKey(vault, 1))
	type options = []clientv3.OpOption
	below, ownSpecs := clientv3.WithPrefix(), string(pando.RevisionsOf(web))
	for what, q := range map[string]struct {
		key  string
		opts options
	}{
		"everything":            {"/pando/", options{below}},
		"the root":              {"/", options{below}},
		"no prefix":             {"", options{below}},
		"from a key":            {"/pando/r", options{clientv3.WithFromKey()}},
		"from its own revision": {string(pando.RevisionKey(web, 1)), options{clientv3.WithFromKey()}},
		"past its own end":      {ownSpecs, options{clientv3.WithRange("/pando/s")}},
		"all specs":             {"/pando/revision/", options{below}},
		"their count":           {"/pando/revision/", options{below, clientv3.WithCountOnly()}},
		"a tenant":              {"/pando/revision/bank/", options{below}},
		"an instance elsewhere": {string(theirs.Key()), nil},
		"a decision":            {"/pando/decision/bank/vault/", options{below}},
	} {
		before := s.Refusals("h2").Refused
		got, err := c.Get(t.Context(), q.key, q.opts...)
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("read %s: %v, %v", what, got, err)
		}
		watch, stop := context.WithTimeout(t.Context(), 10*time.Second)
		opts := append(options{clientv3.WithRev(1), clientv3.WithPrevKV()}, q.opts...)
		if q.opts == nil || what != "their count" {
			for got := range etcdAs(t, at, i).Watch(watch, q.key, opts...) {
				if len(got.Events) > 0 || status.Code(got.Err()) != codes.PermissionDenied {
					t.Errorf("watch %s: %v, %v", what, got.Events, got.Err())
				}
			}
		}
		if watch.Err() != nil {
			t.Errorf("the watch of %s stays open", what)
		}
		stop()
		if after := s.Refusals("h2").Refused; after < before+1 {
			t.Errorf("%s: %d refusals are counted, before it %d", what, after, before)
		}
	}
	got, err := c.Get(t.Context(), secret)
	if err != nil || len(got.Kvs) != 0 || got.Count != 0 {
		t.Errorf("read the spec itself: %v, %v; want no records", got, err)
	}
	fence := clientv3.Compare(clientv3.CreateRevision(string(f.Key)), "=", int64(f.Created))
	guess := clientv3.Compare(clientv3.Value(secret), ">", "{")
	inner := []clientv3.Op{clientv3.OpGet(secret)}
	for what, txn := range map[string]clientv3.Txn{
		"a read":              c.Txn(t.Context()).If(fence).Then(clientv3.OpGet(secret)),
		"a read otherwise":    c.Txn(t.Context()).If(fence).Else(clientv3.OpGet(secret)),
		"a guess at a value":  c.Txn(t.Context()).If(fence, guess),
		"a transaction in it": c.Txn(t.Context()).If(fence).Then(clientv3.OpTxn(nil, inner, nil)),
	} {
		if got, err := txn.Commit(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a transaction with %s: %v, %v", what, got, err)
		}
	}
}

// A watch follows the right to read: it is silent without it, and ends when the right comes back,
// so that the member reads the changes that it missed.
func TestAWatchFollowsTheRight(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	mine, theirs := placed(t, s)
	write(t, s, specOf(web), specOf(vault))
	r, _ := enter(t, at, member(t, a, "h2"))
	begin, err := r.Snapshot(t.Context(), pando.RevisionsOf(vault))
	if err != nil || len(begin.Records) != 0 {
		t.Fatal(err, begin.Records)
	}
	foreign := r.Watch(t.Context(), pando.RevisionsOf(vault), begin.Revision)
	own := r.Watch(t.Context(), pando.InstancesOn(web, "h2"), begin.Revision)
	write(t, s, specOf(vault)) // no right to it
	write(t, s, mine)
	if b := <-own; b.Err != nil || len(b.Changes) != 1 {
		t.Fatalf("its own watch: %+v", b)
	}
	select {
	case b := <-foreign:
		t.Fatalf("a watch of another tenant's specs got %+v", b)
	default:
	}
	moved := theirs
	moved.Host, moved.ID = "h2", "vault-2"
	write(t, s, moved, pando.Endpoints{
		Service: pando.Service{ServiceKey: vault}, Hosts: []pando.HostName{"h2"},
	})
	for b := range foreign {
		if !errors.Is(b.Err, pando.ErrCompacted) {
			t.Fatalf("the service came: %+v; want a request to read again", b)
		}
	}
	// The follower of a store reads again by itself.
	specs, ctx := make(chan int, 16), t.Context()
	go func() {
		_ = world.Follow(ctx, clock.Clock{}, r, pando.RevisionsOf(vault), func(b pando.Batch, reset bool) {
			select {
			case specs <- len(b.Changes):
			case <-ctx.Done():
			}
		})
	}()
	if n := <-specs; n != 1 {
		t.Fatalf("it reads %d specs", n)
	}
	next := specOf(vault)
	next.Number = 2
	write(t, s, next)
	if n := <-specs; n != 1 {
		t.Errorf("it follows with %d changes", n)
	}
}

// A member that runs a server has a copy of the store: it reads all. Its streams end with that.
func TestAMemberWithAServerReadsAll(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	placed(t, s)
	serves := pando.Member{Name: "h2", Slot: 2, Address: addressOf(2), Server: true}
	write(t, s, serves, specOf(vault))
	r, _ := enter(t, at, member(t, a, "h2"))
	now, err := r.Snapshot(t.Context(), pando.Root)
	if err != nil || len(now.Records) < 10 {
		t.Fatalf("%d records, %v", len(now.Records), err)
	}
	w := r.Watch(t.Context(), pando.Root, now.Revision)
	write(t, s, specOf(vault))
	if b := <-w; b.Err != nil || len(b.Changes) != 1 {
		t.Fatalf("it watches %+v", b)
	}
	serves.Server = false
	write(t, s, serves)
	for b := range w {
		if b.Err != nil && !errors.Is(b.Err, pando.ErrForbidden) &&
			!errors.Is(b.Err, pando.ErrUnavailable) {
			t.Errorf("the end of its watch: %v", b.Err)
		}
	}
	if _, err := r.Snapshot(t.Context(), pando.Root); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("without its server it reads all: %v", err)
	}
}
