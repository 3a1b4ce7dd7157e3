package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

const mib = 1 << 20

func TestRelief(t *testing.T) {
	for _, c := range []struct {
		what string
		is   sizes
		full bool
		want relief
	}{
		{"a new store", sizes{file: 1, used: 1, quota: 512 * mib}, false, relief{}},
		{"live records fill it", sizes{file: 449 * mib, used: 448 * mib, quota: 512 * mib}, false,
			relief{full: true}},
		{"still full a little below", sizes{file: 449 * mib, used: 400 * mib, quota: 512 * mib}, true,
			relief{full: true}},
		{"room again", sizes{file: 385 * mib, used: 380 * mib, quota: 512 * mib}, true, relief{}},
		{"free pages while it is busy", sizes{file: 200 * mib, used: 20 * mib, quota: 512 * mib,
			rested: time.Hour}, false, relief{}},
		{"free pages in the quiet", sizes{file: 200 * mib, used: 20 * mib, quota: 512 * mib,
			rested: time.Hour, quiet: defragmentQuiet}, false, relief{defragment: true}},
		{"free pages soon after a pause", sizes{file: 200 * mib, used: 20 * mib, quota: 512 * mib,
			rested: time.Minute, quiet: time.Minute}, false, relief{}},
		{"free pages near the limit", sizes{file: 400 * mib, used: 20 * mib, quota: 512 * mib,
			rested: defragmentHaste}, false, relief{defragment: true}},
		{"at the limit with room", sizes{file: 512 * mib, used: 20 * mib, quota: 512 * mib,
			alarmed: true}, false, relief{defragment: true, disarm: true}},
		{"an alarm without a cause", sizes{file: 20 * mib, used: 20 * mib, quota: 512 * mib,
			alarmed: true}, false, relief{disarm: true}},
		{"at the limit without room", sizes{file: 512 * mib, used: 500 * mib, quota: 512 * mib,
			alarmed: true, rested: time.Hour, quiet: time.Hour}, true, relief{full: true}},
	} {
		if got := relieve(c.is, c.full); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// An empty store has two log files, a reserve against a full disk, and little else.
func TestAnEmptyStoreIsSmall(t *testing.T) {
	dir := t.TempDir()
	start(t, dir)
	var size int64
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		size += st.Blocks * 512
		return err
	})
	if most := int64(2*segmentBytes + ballastBytes + aheadBytes + mib); err != nil || size > most {
		t.Errorf("it takes %d bytes of the disk, want at most %d: %v", size, most, err)
	}
}

func TestForgottenHistory(t *testing.T) {
	for _, c := range []struct {
		what string
		is   sizes
		want int64
	}{
		{"a new store", sizes{revision: 1, compacted: -1, quota: 100}, 0},
		{"little history", sizes{revision: 30000, compacted: -1, quota: 100}, 0},
		{"long history", sizes{revision: 50000, compacted: -1, quota: 100}, 30000},
		{"not again at once", sizes{revision: 50100, compacted: 30000, quota: 100}, 0},
		{"a fuller store", sizes{revision: 50100, compacted: 30000, used: 30, quota: 100}, 48100},
		{"an even fuller store", sizes{revision: 50100, compacted: 49000, used: 60, quota: 100}, 49900},
		{"a full store", sizes{revision: 50100, compacted: 50000, used: 80, quota: 100}, 50100},
		{"a full store without news", sizes{revision: 50100, compacted: 50100, used: 80, quota: 100}, 0},
		{"an alarm", sizes{revision: 500, compacted: 10, alarmed: true, quota: 100}, 500},
	} {
		if got := forget(c.is); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// No look at a store of any size repeats an expensive step that made no room.
func TestReliefNeverRunsInPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		quota := int64(512 * mib)
		s := sizes{
			quota: quota, used: rapid.Int64Range(0, quota).Draw(t, "used"),
			revision:  rapid.Int64Range(1, 1e6).Draw(t, "revision"),
			compacted: -1, alarmed: rapid.Bool().Draw(t, "alarmed"),
			quiet:  time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "quiet")),
			rested: time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "rested")),
		}
		s.file = rapid.Int64Range(s.used, quota).Draw(t, "file")
		if to := forget(s); to > s.revision || to < 0 {
			t.Fatalf("%+v: compact to %d", s, to)
		} else if to != 0 {
			if s.compacted = to; forget(s) != 0 {
				t.Fatalf("%+v: compacted and compacts again", s)
			}
		}
		r := relieve(s, false)
		if r.defragment {
			s.file, s.rested = s.used, 0
		}
		if r.disarm {
			s.alarmed = false
		}
		if next := relieve(s, r.full); next.defragment || next.disarm || next.full != r.full {
			t.Fatalf("%+v: %+v, and then %+v", s, r, next)
		}
	})
}

// startSmall starts a store with a small limit.
func startSmall(t *testing.T, quota int64) (*Server, string) {
	t.Helper()
	dir := tempDir(t)
	s, err := Start(t.Context(), ServerConfig{
		Dir: dir, ClientSocket: filepath.Join(dir, "client"), QuotaBytes: quota,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, "unix://" + filepath.Join(dir, "client")
}

// decision returns a record of 64 KiB.
func decision(id string) pando.Decision {
	return pando.Decision{
		ID: id, Service: pando.DefaultService("web"), Reason: strings.Repeat("x", 64<<10),
	}
}

// Twice the limit is written over the same few records. Watches that keep up never notice.
func TestHistoryNeverFillsTheStore(t *testing.T) {
	t.Parallel()
	s, endpoint := startSmall(t, 16*mib)
	remote := dial(t, endpoint)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := commit(t, remote, pando.Txn{Put: []pando.Stored{service("web")}})
	watch := remote.Watch(ctx, pando.Root, began)
	patient, end := context.WithTimeout(t.Context(), 4*patience)
	defer end()
	for n := range 512 {
		put := pando.Txn{Put: []pando.Stored{decision(fmt.Sprint(n % 4))}}
		for {
			_, err := remote.Commit(patient, put)
			if err == nil {
				break
			}
			if !errors.Is(err, pando.ErrStoreFull) || patient.Err() != nil {
				t.Fatalf("record %d: %v", n, err)
			}
		}
		if b := next(t, watch); b.Err != nil {
			t.Fatalf("record %d: the watch was reset: %v", n, b.Err)
		}
	}
	if size := s.etcd.Server.Backend().Size(); size > 17*mib {
		t.Errorf("the file has %d MiB, its limit is 16", size/mib)
	}
}

// Live records fill the store. It refuses new services and asks with the reason, never pauses again
// and again, and accepts what removes a service. Then it takes new services.
func TestAStoreFullOfLiveRecordsFreezesNothing(t *testing.T) {
	s, endpoint := startSmall(t, 64*mib)
	remote := dial(t, endpoint)
	revision := func(n int) pando.Txn {
		return pando.Txn{Put: []pando.Stored{pando.Revision{
			Service: pando.DefaultService("web"), Number: n,
			Spec: pando.Spec{Command: []string{strings.Repeat("x", 64<<10)}},
		}}}
	}
	var refused error
	last := 0
	for refused == nil {
		if _, refused = remote.Commit(t.Context(), revision(last+1)); refused == nil {
			last++
		}
		if last > 2000 {
			t.Fatal("the store never fills up")
		}
	}
	await := func(what string, holds func() error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		for err := holds(); err != nil; err = holds() {
			if pando.Sleep(ctx, clock.Clock{}, 10*time.Millisecond) != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for name, r := range map[string]*Registry{"in process": s.Registry(), "remote": remote} {
		await(name+", a new revision is refused with the reason", func() error {
			_, err := r.Commit(t.Context(), revision(1000))
			if !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), "pando rm") {
				return fmt.Errorf("it is answered with: %v", err)
			}
			return nil
		})
		ask := pando.Intent{ID: "i1", Service: pando.DefaultService("web"), Verb: pando.VerbReplicate}
		ask = ask.Become(pando.IntentAsked, time.Unix(1, 0), "load")
		if _, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{ask}}); !errors.Is(err,
			pando.ErrStoreFull) {
			t.Errorf("%s: a new ask: %v", name, err)
		}
		await(name+", control removes a service", func() error {
			_, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{service("web")}})
			return err
		})
	}
	for n := range last / 2 {
		commit(t, s.Registry(), pando.Txn{Delete: []pando.Key{revision(n + 1).Put[0].Key()}})
	}
	await("half of the revisions are removed, and a new one fits", func() error {
		_, err := remote.Commit(t.Context(), revision(1000))
		return err
	})
}

// A look costs no pause while nothing can be gained, however often it happens.
func TestAFullStoreIsNotDefragmentedAgainAndAgain(t *testing.T) {
	is := sizes{revision: 9, compacted: 9, file: 500 * mib, used: 490 * mib, quota: 512 * mib,
		alarmed: true}
	pauses := 0
	m := &slimmer{g: &guard{log: slog.New(slog.DiscardHandler)}, shape: shape{
		look:       func() sizes { return is },
		compact:    func(context.Context, int64) error { is.compacted = is.revision; return nil },
		defragment: func() error { pauses++; is.file = is.used; return nil },
		disarm:     func(context.Context) error { is.alarmed = false; return nil },
	}}
	now := time.Now()
	steps := func() {
		for range 10 * 3600 { // two hours
			now = now.Add(lookInterval)
			if err := m.step(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps()
	if pauses > 0 || m.g.full.Load() == 0 || !is.alarmed {
		t.Errorf("%d pauses that make no room; full %d", pauses, m.g.full.Load())
	}
	is.used = 100 * mib // services were removed
	steps()
	if pauses != 1 || m.g.full.Load() != 0 || is.alarmed {
		t.Errorf("%d pauses with room to make, alarm %v", pauses, is.alarmed)
	}
	broken := errors.New("broken")
	is.file, m.defragment = 500*mib, func() error { return broken }
	now = now.Add(time.Hour)
	if err := m.step(t.Context(), now); !errors.Is(err, broken) {
		t.Errorf("a defragmentation that fails: %v", err)
	}
}
