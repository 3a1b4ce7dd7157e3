// Package state tests states as they are on a host: package state over a file, trimmed, killed and
// cloned.
package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/git"
	"pando.run/pando/driver/store/bolt"
	"pando.run/pando/state"
)

var (
	t0    = time.Unix(1_800_000_000, 0).UTC()
	web   = pando.DefaultService("web")
	typed = map[string]pando.StateType{"hits": pando.StateCounter, "access.log": pando.StateLog}
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PANDO_TEST_WRITE"); dir != "" {
		fmt.Println(write(dir))
		os.Exit(1) // it writes until it is killed
	}
	os.Exit(m.Run())
}

// host is one host's state and main, which the registry would hold.
type host struct {
	objects *bolt.Store
	repo    *state.Repo
	mu      sync.Mutex
	main    pando.ObjectID
	now     time.Time
}

func open(dir string) (*host, error) {
	objects, err := bolt.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, err
	}
	h := &host{objects: objects, repo: state.Open(objects, web, typed), now: t0}
	b, err := os.ReadFile(filepath.Join(dir, "main"))
	if err == nil {
		err = h.main.UnmarshalText(b)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, objects.Close())
	}
	return h, nil
}

// users lie in a folder that is large enough to be stored as a delta against the one before.
const users = 150

// push writes a hit, a line and a user to a branch and merges it into main. swap moves main.
func (h *host) push(
	ctx context.Context, b *state.Branch, line string, swap func(pando.ObjectID) error,
) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, last := len(line)%users, len(line)%users
	if h.main.IsZero() {
		first, last = 0, users-1
	}
	err := errors.Join(b.Patch("hits", []byte("1")), b.Patch("access.log", []byte(line)))
	for n := first; n <= last; n++ {
		err = errors.Join(err, b.Put(fmt.Sprintf("users/%03d", n), []byte(line)))
	}
	if err != nil {
		return err
	}
	h.now = h.now.Add(time.Second)
	if _, err := b.Commit(ctx, "one hit", h.now); err != nil {
		return err
	}
	to, _, err := b.Merge(ctx, h.main, h.now)
	if err != nil {
		return err
	}
	if err := swap(to); err != nil {
		return err
	}
	h.main = to
	return b.Pushed(to)
}

// head returns main for a server's goroutine.
func (h *host) head() pando.ObjectID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.main
}

func (h *host) trim(ctx context.Context, keep state.Keep) (state.Trimmed, error) {
	h.mu.Lock()
	known := state.Known{Heads: map[pando.ServiceKey]pando.ObjectID{}}
	if !h.main.IsZero() {
		known.Heads[web] = h.main
	}
	now := h.now
	h.mu.Unlock()
	return state.Trim(ctx, h.objects, known, keep, now)
}

// write pushes and trims until it is killed. It prints each line that is durable in main.
func write(dir string) error {
	ctx := context.Background()
	h, err := open(dir)
	if err != nil {
		return err
	}
	b, err := h.repo.Born(ctx, pando.InstanceID("web-"+filepath.Base(os.Args[0])), h.main)
	if err != nil {
		return err
	}
	go func() {
		for err := error(nil); err == nil; {
			_, err = h.trim(ctx, state.Keep{Commits: 3})
		}
	}()
	swap := func(to pando.ObjectID) error {
		text, _ := to.MarshalText()
		next := filepath.Join(dir, "main.next")
		return errors.Join(os.WriteFile(next, text, 0o600), os.Rename(next, filepath.Join(dir, "main")))
	}
	for n := 0; ; n++ {
		line := fmt.Sprintf("%d of %d", n, os.Getpid())
		if err := h.push(ctx, b, line, swap); err != nil {
			return err
		}
		fmt.Println(line)
	}
}

func TestKilledWhileItWritesAndTrims(t *testing.T) {
	dir := t.TempDir()
	said := map[string]bool{}
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "PANDO_TEST_WRITE="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 10+7*round && lines.Scan(); n++ {
			said[lines.Text()] = true
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		for line := range strings.Lines(string(rest)) {
			if strings.HasSuffix(line, "\n") {
				said[strings.TrimSpace(line)] = true
			}
		}
		checkLog(t, dir, said)
	}
	if len(said) < 5*10 {
		t.Errorf("it wrote %d lines only: %v", len(said), said)
	}
}

// checkLog checks main against the output of a killed process, and checks that nothing is missing.
func checkLog(t *testing.T, dir string, said map[string]bool) {
	t.Helper()
	h, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.objects.Close()
	log, err := h.repo.Read(h.main, "access.log")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(log.Bytes)) {
		seen[strings.TrimSpace(line)]++
	}
	for line := range said {
		if seen[line] != 1 {
			t.Errorf("%q is in main %d times", line, seen[line])
		}
	}
	hits, err := h.repo.Read(h.main, "hits")
	if err != nil || string(hits.Bytes) != fmt.Sprint(len(seen)) {
		t.Errorf("%s hits and %d lines, %v", hits.Bytes, len(seen), err)
	}
	whole(t, h)
}

// whole checks that every object that main and the branches reach is present.
func whole(t *testing.T, h *host) int {
	t.Helper()
	edge, err := state.Edge(h.objects, web)
	if err != nil {
		t.Fatal(err)
	}
	branches, err := state.Branches(h.objects, web)
	if err != nil {
		t.Fatal(err)
	}
	heads := []pando.ObjectID{h.main}
	for _, id := range branches {
		heads = append(heads, id)
	}
	n := 0
	err = (&state.Walk{Objects: h.objects, Edge: edge}).From(heads,
		func(_ pando.ObjectKind, id pando.ObjectID) error {
			n++
			kind, body, err := h.objects.Object(id)
			if is := state.ID(kind, body); err == nil && is != id {
				err = fmt.Errorf("the object read as %s is %s", id, is)
			}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func noSwap(pando.ObjectID) error { return nil }

func TestATrimBesideWriters(t *testing.T) {
	ctx := t.Context()
	h, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer h.objects.Close()
	const writers, pushes = 4, 25
	var wg, trimmer sync.WaitGroup
	stop := make(chan struct{})
	for n := range writers {
		b, err := h.repo.Born(ctx, pando.InstanceID(fmt.Sprintf("web-%d", n)), h.main)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for k := range pushes {
				if err := h.push(ctx, b, fmt.Sprintf("%d of %d", k, n), noSwap); err != nil {
					t.Error(err)
					return
				}
				h.mu.Lock()
				main, now := h.main, h.now
				h.mu.Unlock()
				if _, err := b.Pull(ctx, main, now); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	deleted := 0
	trimmer.Go(func() {
		for {
			done, err := h.trim(ctx, state.Keep{Commits: 1})
			deleted += done.Objects
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	wg.Wait()
	close(stop)
	trimmer.Wait()
	hits, err := h.repo.Read(h.main, "hits")
	if err != nil || string(hits.Bytes) != fmt.Sprint(writers*pushes) || deleted == 0 {
		t.Errorf("%s hits, %v; %d objects were deleted", hits.Bytes, err, deleted)
	}
	whole(t, h)
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// serveGit serves the state of a host to git.
func serveGit(t *testing.T, h *host) *httptest.Server {
	t.Helper()
	main := func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error) {
		return h.objects, h.head(), nil
	}
	server := httptest.NewServer(git.Handler(main))
	t.Cleanup(server.Close)
	return server
}

func TestATrimmedStateIsClonedAndFetched(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	h, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.objects.Close()
	server := serveGit(t, h)
	a, err := h.repo.Born(ctx, "web-a", h.main)
	if err != nil {
		t.Fatal(err)
	}
	push := func(n int) {
		for k := range n {
			if err := h.push(ctx, a, fmt.Sprintf("line %d", k), noSwap); err != nil {
				t.Fatal(err)
			}
		}
	}
	push(20)
	old := filepath.Join(dir, "old")
	runGit(t, ".", "clone", "-q", server.URL+"/state/web.git", old)
	push(30)
	before := whole(t, h)
	// Otherwise the branch also keeps its base from before the last push.
	if err := a.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	done, err := h.trim(ctx, state.Keep{Commits: 10})
	if err != nil {
		t.Fatal(err)
	}
	if after := whole(t, h); done.Objects == 0 || before-after != done.Objects {
		t.Errorf("%d objects before, %d after, %d deleted", before, after, done.Objects)
	}
	fresh := filepath.Join(dir, "fresh")
	runGit(t, ".", "clone", "-q", server.URL+"/state/web.git", fresh)
	runGit(t, fresh, "fsck", "--strict", "--full")
	if n := strings.Count(runGit(t, fresh, "log", "--first-parent", "--format=%h"), "\n"); n != 11 {
		t.Errorf("the clone has %d commits of main, want 10 and the edge", n)
	}
	if got := runGit(t, fresh, "show", "HEAD:hits"); got != "50" {
		t.Errorf("hits in the clone: %s", got)
	}
	push(5)
	runGit(t, fresh, "pull", "-q", "--ff-only")
	runGit(t, fresh, "fsck", "--strict", "--full")
	runGit(t, old, "fetch", "-q", "--update-shallow") // its newest commit is older than the edge
	runGit(t, old, "fsck", "--strict", "--full")
	if got := runGit(t, old, "show", "origin/main:hits"); got != "55" {
		t.Errorf("hits in the old clone: %s", got)
	}
	for range 3 { // history grows and is trimmed again: an up-to-date clone notices nothing
		push(7)
		if _, err := h.trim(ctx, state.Keep{Commits: 10}); err != nil {
			t.Fatal(err)
		}
		runGit(t, fresh, "pull", "-q", "--ff-only")
		runGit(t, fresh, "fsck", "--strict", "--full")
	}
	push(25) // an outdated clone begins anew
	if _, err := h.trim(ctx, state.Keep{Commits: 10}); err != nil {
		t.Fatal(err)
	}
	runGit(t, fresh, "fetch", "-q", "--update-shallow")
	runGit(t, fresh, "reset", "-q", "--hard", "origin/main")
	runGit(t, fresh, "fsck", "--strict", "--full")
}

func TestAPurgedServiceIsForgotten(t *testing.T) {
	ctx := t.Context()
	h, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer h.objects.Close()
	b, err := h.repo.Born(ctx, "web-a", h.main)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := h.push(ctx, b, fmt.Sprint(n), noSwap); err != nil {
			t.Fatal(err)
		}
	}
	known := state.Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: h.main},
		Alive: func(pando.InstanceID) bool { return false }}
	if done, err := state.Trim(ctx, h.objects, known, state.DefaultKeep, h.now); err != nil ||
		done.Branches != 1 {
		t.Errorf("the branch of a dead instance: %+v, %v", done, err)
	}
	whole(t, h)
	delete(known.Heads, web)
	if _, err := state.Trim(ctx, h.objects, known, state.DefaultKeep, h.now); err != nil {
		t.Error(err)
	}
	refs, err := h.objects.Refs("")
	_, _, missing := h.objects.Object(h.main)
	if err != nil || len(refs) != 0 || !errors.Is(missing, pando.ErrNotFound) {
		t.Errorf("refs %v, %v; main: %v", refs, err, missing)
	}
}
