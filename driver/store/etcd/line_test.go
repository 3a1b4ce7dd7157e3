package etcd

import (
	"context"
	"errors"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// refuses returns an address that refuses connections.
func refuses(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silent returns an address that accepts connections and never answers, like a stopped process.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestALineFindsTheServerThatAnswers(t *testing.T) {
	t.Parallel()
	_, good, member := startForMembers(t)
	for name, first := range map[string]string{"refused": refuses(t), "silent": silent(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Dial(t.Context(), "https://"+first, member.ToServer())
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := r.Use(clock.Clock{}, []string{"https://" + first, "https://" + good}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "read by the other server", func() error {
				_, err := r.Snapshot(t.Context(), pando.Root+"service/")
				return err
			})
			if r.At() != "https://"+good {
				t.Errorf("the server in use is %s, want %s", r.At(), good)
			}
		})
	}
}

// A stopped server costs no lease and no watch.
func TestASilentServerCostsNoLeaseAndNoWatch(t *testing.T) {
	t.Parallel()
	s, at, member := startForMembers(t)
	relay, cut := relay(t, at)
	r, err := Dial(t.Context(), "https://"+relay, member.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Use(clock.Clock{}, []string{"https://" + relay, "https://" + at}); err != nil {
		t.Fatal(err)
	}
	var fence pando.Fence
	var lost <-chan struct{}
	eventually(t, "join", func() error {
		fence, lost, err = r.Join(t.Context(), pando.Host{Name: "h2", Slot: 1}, 4*time.Second)
		return err
	})
	watch := r.Watch(t.Context(), pando.Root+"service/", 0)
	cut()
	commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{service("after")}})
	for len(next(t, watch).Changes) == 0 {
	}
	if r.At() != "https://"+at {
		t.Errorf("the server in use is %s", r.At())
	}
	select { // longer than the lease
	case <-lost:
		t.Error("the lease is lost")
	case <-time.After(5 * time.Second):
	}
	got, err := r.Snapshot(t.Context(), fence.Key)
	if err != nil || len(got.Records) != 1 || got.Records[0].Modified != fence.Created {
		t.Errorf("the fence is %+v (%v), want that of revision %d", got.Records, err, fence.Created)
	}
}

func TestUseRefusesWhatIsNoServer(t *testing.T) {
	t.Parallel()
	_, at := start(t, tempDir(t))
	r := dial(t, at)
	for _, all := range [][]string{nil, {"ftp://x"}, {at, "unix://relative"}, {""}} {
		if err := r.Use(clock.Clock{}, all); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("use of %v: %v", all, err)
		}
	}
	if r.At() != at {
		t.Errorf("a refused use changed the server to %s", r.At())
	}
	if _, err := r.Snapshot(t.Context(), pando.Root); err != nil {
		t.Error(err)
	}
}

func TestALineKeepsItsServerIfTheListGrows(t *testing.T) {
	l, err := newLine("unix:///b", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.use([]string{"unix:///a", "unix:///b"})
	if at, n := l.current(); at != "unix:///b" || n != 2 {
		t.Errorf("it uses %s of %d", at, n)
	}
	l.use([]string{"unix:///c", "unix:///d"})
	if at, _ := l.current(); at != "unix:///c" {
		t.Errorf("it uses %s, which is not listed", at)
	}
	l.leave("unix:///d") // not in use
	if at, _ := l.current(); at != "unix:///c" {
		t.Errorf("it left a server that it did not use, for %s", at)
	}
	l.leave("unix:///c")
	l.leave("unix:///d")
	if at, _ := l.current(); at != "unix:///c" {
		t.Errorf("after the last one comes %s", at)
	}
}

func TestALeaseEndsWithItsLastAnswer(t *testing.T) {
	t.Parallel()
	const ttl = 400 * time.Millisecond
	for name, c := range map[string]struct {
		err   error
		least time.Duration
	}{
		"without an answer": {context.DeadlineExceeded, ttl},
		"by the store":      {rpctypes.ErrLeaseNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			began := time.Now()
			lost := renewal(t.Context(), ttl, func(context.Context) error {
				if calls.Add(1) == 1 {
					return nil
				}
				return c.err
			})
			select {
			case <-lost:
			case <-time.After(patience):
				t.Fatal("the lease never ends")
			}
			if took := time.Since(began); took < c.least || calls.Load() < 2 {
				t.Errorf("it ended after %s and %d calls", took, calls.Load())
			}
		})
	}
}

func TestALeaseIsRenewedWhileItIsAnswered(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan struct{}, 64)
	lost := renewal(ctx, 80*time.Millisecond, func(context.Context) error {
		called <- struct{}{}
		return nil
	})
	for range 12 { // three times its duration
		select {
		case <-called:
		case <-lost:
			t.Fatal("the lease was lost")
		}
	}
	cancel()
	<-lost
}

// An agent under load of its instances allocates and collects all the time. Its lease is renewed
// meanwhile.
func TestALeaseIsRenewedWhileTheCollectorWorks(t *testing.T) {
	const duration = 900 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	for range runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			var held [1 << 16]*[64]*byte // pointers, so that the collector has to look at them
			for n := 0; ctx.Err() == nil; n++ {
				held[n%len(held)] = new([64]*byte)
			}
			runtime.KeepAlive(&held)
		})
	}
	var cycles debug.GCStats
	debug.ReadGCStats(&cycles)
	before := cycles.NumGC
	called := make(chan struct{}, 64)
	lost := renewal(ctx, duration, func(context.Context) error {
		called <- struct{}{}
		return nil
	})
	for range 6 { // twice its duration
		select {
		case <-called:
		case <-lost:
			t.Fatal("the lease was lost")
		}
	}
	debug.ReadGCStats(&cycles)
	if n := cycles.NumGC - before; n < 3 {
		t.Errorf("the collector worked %d times: the test proves nothing", n)
	}
}
