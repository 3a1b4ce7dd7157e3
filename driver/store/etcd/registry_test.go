package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/world"
)

const patience = time.Minute

// start runs a real server. Its client socket has a short path, as a unix socket needs.
func start(t *testing.T, dir string) (*Server, string) {
	t.Helper()
	socket := filepath.Join(dir, "client")
	s, err := Start(t.Context(),
		ServerConfig{Dir: dir, ClientSocket: socket, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, "unix://" + socket
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func dial(t *testing.T, endpoint string) *Registry {
	t.Helper()
	r, err := Dial(context.Background(), endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func service(name string) pando.Service {
	return pando.Service{
		ServiceKey: pando.DefaultService(pando.ServiceName(name)), Phase: pando.ServiceServing,
	}
}

func commit(t *testing.T, r *Registry, txn pando.Txn) pando.StoreRevision {
	t.Helper()
	rev, err := r.Commit(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func next(t *testing.T, w <-chan pando.Batch) pando.Batch {
	t.Helper()
	for {
		select {
		case b, ok := <-w:
			if !ok {
				t.Fatal("the watch ended")
			}
			if b.Err == nil && len(b.Changes) == 0 {
				continue // progress
			}
			return b
		case <-time.After(patience):
			t.Fatal("nothing came from the watch")
		}
	}
}

func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}

func TestCommitSnapshotAndConflict(t *testing.T) {
	s, endpoint := start(t, tempDir(t))
	for name, r := range map[string]*Registry{"inprocess": s.Registry(), "socket": dial(t, endpoint)} {
		t.Run(name, func(t *testing.T) {
			web := service(name)
			first := commit(t, r,
				pando.Txn{If: []pando.Condition{{Key: web.Key()}}, Put: []pando.Stored{web}})
			snap, err := r.Snapshot(t.Context(), web.Key())
			if err != nil || len(snap.Records) != 1 || snap.Records[0].Modified != first ||
				snap.Records[0].Created != first {
				t.Fatalf("snapshot %+v, %v; want one record of revision %d", snap, err, first)
			}
			var back pando.Service
			if err := world.Decode(snap.Records[0], &back); err != nil || !reflect.DeepEqual(back, web) {
				t.Fatalf("read back %+v, %v", back, err)
			}
			for _, stale := range []pando.StoreRevision{0, first - 1, first + 1} {
				_, err := r.Commit(t.Context(), pando.Txn{
					If: []pando.Condition{{Key: web.Key(), Modified: stale}}, Delete: []pando.Key{web.Key()},
				})
				if !errors.Is(err, pando.ErrConflict) || !strings.Contains(err.Error(), string(web.Key())) {
					t.Errorf("condition on revision %d: %v; want a conflict that names the key", stale, err)
				}
			}
			commit(t, r, pando.Txn{
				If: []pando.Condition{{Key: web.Key(), Modified: first}}, Delete: []pando.Key{web.Key()},
			})
			if _, err := r.Commit(t.Context(),
				pando.Txn{Put: []pando.Stored{web, web}}); !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("one key twice: %v", err)
			}
			if _, err := r.Commit(t.Context(), pando.Txn{}); !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("nothing: %v", err)
			}
		})
	}
}

func TestWatchIsOrderedPerCommitAndResumesAcrossARestart(t *testing.T) {
	dir := tempDir(t)
	s, endpoint := start(t, dir)
	r := dial(t, endpoint)
	prefix := pando.Root + pando.Key(pando.KindService) + "/"
	w := r.Watch(t.Context(), prefix, 0)

	both := commit(t, r, pando.Txn{Put: []pando.Stored{service("a"), service("b")}})
	if b := next(t, w); b.Revision != both || len(b.Changes) != 2 {
		t.Fatalf("got %+v; want both changes of revision %d in one batch", b, both)
	}
	var wrote []pando.StoreRevision
	for i := range 50 {
		wrote = append(wrote,
			commit(t, r, pando.Txn{Put: []pando.Stored{service(fmt.Sprintf("s%d", i))}}))
	}
	var saw []pando.StoreRevision
	for range wrote {
		saw = append(saw, next(t, w).Revision)
	}
	if !slices.Equal(wrote, saw) {
		t.Fatalf("wrote %v, saw %v", wrote, saw)
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Snapshot(ctx, prefix); !errors.Is(err, pando.ErrUnavailable) {
		t.Fatalf("read from a dead server: %v; want ErrUnavailable", err)
	}
	again, _ := start(t, dir)
	gone := commit(t, again.Registry(), pando.Txn{Delete: []pando.Key{service("a").Key()}})
	if b := next(t, w); b.Revision != gone || len(b.Changes) != 1 || b.Changes[0].Value != nil {
		t.Fatalf("after a restart: %+v; want the deletion of revision %d", b, gone)
	}
	resumed := again.Registry().Watch(t.Context(), prefix, both)
	if b := next(t, resumed); b.Revision != wrote[0] {
		t.Fatalf("a watch after %d began with %d; want %d", both, b.Revision, wrote[0])
	}
}

func TestWatchOfCompactedHistoryAndOfAClosedRegistry(t *testing.T) {
	s, _ := start(t, tempDir(t))
	r := s.Registry()
	var last pando.StoreRevision
	for range 3 {
		last = commit(t, r, pando.Txn{Put: []pando.Stored{service("web")}})
	}
	if _, err := r.client.Compact(t.Context(), int64(last)); err != nil {
		t.Fatal(err)
	}
	if b := next(t, r.Watch(t.Context(), pando.Root, 1)); !errors.Is(b.Err, pando.ErrCompacted) {
		t.Fatalf("got %+v; want ErrCompacted", b)
	}
	w := r.Watch(t.Context(), pando.Root, last)
	go s.Close()
	if b := next(t, w); !errors.Is(b.Err, pando.ErrUnavailable) {
		t.Fatalf("got %+v; want ErrUnavailable", b)
	}
}

func TestADeposedLeaderCannotWrite(t *testing.T) {
	s, endpoint := start(t, tempDir(t))
	a, b := s.Registry(), dial(t, endpoint)
	ctx, resign := context.WithCancel(t.Context())
	first, lost, err := a.Lead(ctx, "control", "a")
	if err != nil {
		t.Fatal(err)
	}
	write := func(r *Registry, f pando.Fence) error {
		_, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{service("web")}})
		return err
	}
	if err := write(a, first); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := b.Lead(brief, "control", "b"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second leader: %v", err)
	}
	resign()
	second, _, err := b.Lead(t.Context(), "control", "b")
	if err != nil {
		t.Fatal(err)
	}
	within(t, "the first leader learns of its end", lost)
	if err := write(a, first); !errors.Is(err, pando.ErrFenced) {
		t.Fatalf("a deposed leader wrote: %v", err)
	}
	if err := write(b, second); err != nil {
		t.Fatal(err)
	}
}

func TestLeaderLosesItsRoleWhenItsKeyGoes(t *testing.T) {
	s, _ := start(t, tempDir(t))
	f, lost, err := s.Registry().Lead(t.Context(), "control", "a")
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s.Registry(), pando.Txn{Delete: []pando.Key{f.Key}})
	within(t, "the leader learns that its key is gone", lost)
}

func TestASecondAgentOfAHostTakesOver(t *testing.T) {
	s, endpoint := start(t, tempDir(t))
	h := pando.Host{Name: "h1", Slot: 1}
	old := dial(t, endpoint)
	first, lost, err := old.Join(t.Context(), h, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.Registry().Snapshot(t.Context(), h.Key())
	if err != nil || len(at.Records) != 1 {
		t.Fatalf("%+v, %v", at, err)
	}
	w := s.Registry().Watch(t.Context(), h.Key(), at.Revision)

	h.Slot = 2
	second, _, err := s.Registry().Join(t.Context(), h, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	within(t, "the former agent learns of its successor", lost)
	if b := next(t, w); len(b.Changes) != 1 || b.Changes[0].Value == nil {
		t.Fatalf("a takeover made the host look gone: %+v", b)
	}
	if _, err := old.Commit(t.Context(),
		pando.Txn{Fence: first, Put: []pando.Stored{service("web")}}); !errors.Is(err, pando.ErrFenced) {
		t.Fatalf("the former agent wrote: %v", err)
	}
	h.Version = "2"
	commit(t, s.Registry(), pando.Txn{Fence: second, Put: []pando.Stored{h}})
	if _, err := old.Commit(t.Context(),
		pando.Txn{Put: []pando.Stored{h}}); !errors.Is(err, pando.ErrInvalid) {
		t.Fatalf("a host record without its fence: %v", err)
	}
}

// cutWatches ends the first watches at once, as a server does that leaves the cluster.
type cutWatches struct {
	clientv3.Watcher
	left atomic.Int32
}

func (w *cutWatches) Watch(ctx context.Context, key string, o ...clientv3.OpOption) clientv3.WatchChan {
	if w.left.Add(-1) < 0 {
		return w.Watcher.Watch(ctx, key, o...)
	}
	out := make(chan clientv3.WatchResponse, 1)
	out <- clientv3.WatchResponse{Canceled: true}
	close(out)
	return out
}

// A watch that ends is no lost lease: a server that is removed ends the watches of its clients. The lease
// stands, and its holder still learns of a takeover.
func TestTheEndOfAWatchIsNoLostLease(t *testing.T) {
	_, endpoint := start(t, tempDir(t))
	r := dial(t, endpoint)
	cut := &cutWatches{Watcher: r.client.Watcher}
	cut.left.Store(5)
	r.client.Watcher = cut
	h := pando.Host{Name: "h1"}
	f, lost, err := r.Join(t.Context(), h, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all watches cut", func() error {
		select {
		case <-lost:
			t.Fatal("the lease counts as lost")
		default:
		}
		if n := cut.left.Load(); n >= 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{h}}); err != nil {
		t.Error(err)
	}
	if _, _, err := r.Join(t.Context(), h, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	within(t, "the takeover is noticed", lost)
}

func TestAHostThatDiesLosesItsRecordWithItsLease(t *testing.T) {
	s, endpoint := start(t, tempDir(t))
	r := dial(t, endpoint)
	h := pando.Host{Name: "h1"}
	f, lost, err := r.Join(t.Context(), h, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	at := commit(t, r, pando.Txn{Fence: f, Put: []pando.Stored{h}}) // stays under the lease
	w := s.Registry().Watch(t.Context(), h.Key(), at)
	r.Close()
	within(t, "a closed registry reports its leases lost", lost)
	begun := time.Now()
	if b := next(t, w); len(b.Changes) != 1 || b.Changes[0].Value != nil {
		t.Fatalf("%+v; want the deletion of the host", b)
	}
	t.Logf("seen gone after %v", time.Since(begun).Round(time.Millisecond))
}

func TestRecordOfANewerLayoutIsRefusedInASentence(t *testing.T) {
	s, _ := start(t, tempDir(t))
	r := s.Registry()
	k := service("web").Key()
	if _, err := r.client.Put(t.Context(), string(k), `{"layout":99,"value":{}}`); err != nil {
		t.Fatal(err)
	}
	snap, err := r.Snapshot(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	var v pando.Service
	err = world.Decode(snap.Records[0], &v)
	if err == nil || !strings.Contains(err.Error(), "layout 99") ||
		!strings.Contains(err.Error(), "upgrade pando") {
		t.Fatalf("%v; want a sentence with the next step", err)
	}
}

func TestRecordOfThisLayoutIsRead(t *testing.T) {
	// With the build tag layoutnext, the test reads a record of the previous layout through the
	// upgrade.
	s, _ := start(t, tempDir(t))
	r := s.Registry()
	k := service("web").Key()
	if _, err := r.client.Put(t.Context(), string(k),
		`{"layout":1,"value":{"tenant":"default","name":"web","phase":"serving"}}`); err != nil {
		t.Fatal(err)
	}
	snap, err := r.Snapshot(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	var v pando.Service
	if err := world.Decode(snap.Records[0], &v); err != nil || v.Name != "web" {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestServerStartsAndStopsFastAndOnlyOncePerDirectory(t *testing.T) {
	dir := tempDir(t)
	begun := time.Now()
	s, endpoint := start(t, dir)
	t.Logf("ready after %v", time.Since(begun).Round(time.Millisecond))
	if st, err := os.Stat(filepath.Join(dir, "client")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("client socket: %v, %v; want mode 0600", st.Mode(), err)
	}
	if _, err := Start(t.Context(), ServerConfig{Dir: dir}); !errors.Is(err, pando.ErrExists) {
		t.Errorf("a second server: %v; want ErrExists", err)
	}
	r := dial(t, endpoint)
	r.Watch(t.Context(), pando.Root, 0)
	if _, _, err := r.Lead(t.Context(), "control", "x"); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > slowCloseMin {
		t.Errorf("Close took %v with a client and a watch open", took)
	} else {
		t.Logf("closed after %v", took.Round(time.Millisecond))
	}
}

func TestDialRefusesWhatIsNoEndpoint(t *testing.T) {
	for _, e := range []string{"", "etcd", "unix://", "http://", "ftp://x", "unix://x/y"} {
		if _, err := Dial(t.Context(), e, nil); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q: %v; want ErrInvalid", e, err)
		}
	}
}
