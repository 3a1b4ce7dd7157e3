package git

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

var (
	t0    = time.Unix(1_800_000_000, 0).UTC()
	web   = pando.DefaultService("web")
	typed = map[string]pando.StateType{"hits": pando.StateCounter, "access.log": pando.StateLog}
)

// memory is an Objects in memory.
type memory struct {
	mu      sync.Mutex
	objects map[pando.ObjectID]pando.Object
	refs    map[string]pando.ObjectID
}

func newMemory() *memory {
	return &memory{objects: map[pando.ObjectID]pando.Object{}, refs: map[string]pando.ObjectID{}}
}

func (m *memory) Object(id pando.ObjectID) (pando.ObjectKind, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[id]
	if !ok {
		return "", nil, pando.ErrNotFound
	}
	return o.Kind, o.Body, nil
}

func (m *memory) Ref(name string) (pando.ObjectID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, ok := m.refs[name]
	if !ok {
		return id, pando.ErrNotFound
	}
	return id, nil
}

func (m *memory) Refs(prefix string) (map[string]pando.ObjectID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := maps.Clone(m.refs)
	maps.DeleteFunc(out,
		func(n string, _ pando.ObjectID) bool { return !strings.HasPrefix(n, prefix) })
	return out, nil
}

func (m *memory) Update(_ context.Context, u pando.ObjectsUpdate) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range u.Objects {
		m.objects[o.ID] = o
	}
	for name, id := range u.Refs {
		if m.refs[name] = id; id.IsZero() {
			delete(m.refs, name)
		}
	}
	return nil
}

func (m *memory) Prune(
	_ context.Context, live func() (func(pando.ObjectID) bool, error),
) (int, error) {
	keep, err := live()
	if err != nil {
		return 0, err
	}
	before := len(m.objects)
	maps.DeleteFunc(m.objects, func(id pando.ObjectID, _ pando.Object) bool { return !keep(id) })
	return before - len(m.objects), nil
}

// site is a service's state behind the handler, with one instance that writes and pushes.
type site struct {
	t       *testing.T
	objects *memory
	repo    *state.Repo
	branch  *state.Branch
	main    pando.ObjectID
	head    atomic.Pointer[pando.ObjectID] // main, for the server's goroutines
	sent    atomic.Int64                   // bytes of answers
	now     time.Time
	server  *httptest.Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, objects: newMemory(), now: t0}
	s.repo = state.Open(s.objects, web, typed)
	s.branch = s.born("web-1")
	states := Handler(func(k pando.ServiceKey) (pando.Objects, pando.ObjectID, error) {
		head := s.head.Load()
		if k != web || head == nil {
			return nil, pando.ObjectID{}, fmt.Errorf("state of %s: %w", k, pando.ErrNotFound)
		}
		return s.objects, *head, nil
	})
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		states.ServeHTTP(counting{w, &s.sent}, r)
	}))
	t.Cleanup(s.server.Close)
	return s
}

func (s *site) born(i pando.InstanceID) *state.Branch {
	s.t.Helper()
	b, err := s.repo.Born(s.t.Context(), i, s.main)
	s.ok(err)
	return b
}

func (s *site) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// push writes a hit and a line on a branch, and merges the branch into main.
func (s *site) push(b *state.Branch, line string) {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	s.ok(b.Patch("hits", []byte("1")))
	s.ok(b.Patch("access.log", []byte(line)))
	_, err := b.Commit(s.t.Context(), "one hit", s.now)
	s.ok(err)
	to, _, err := b.Merge(s.t.Context(), s.main, s.now)
	s.ok(err)
	s.main = to
	s.head.Store(&to)
	s.ok(b.Pushed(to))
}

func (s *site) url() string { return s.server.URL + "/state/web.git" }

// git runs the real git, without any configuration of this machine.
func git(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *site) clone(args ...string) string {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "clone")
	mustGit(s.t, ".", append(append([]string{"clone", "-q"}, args...), s.url(), dir)...)
	mustGit(s.t, dir, "fsck", "--strict", "--no-dangling")
	return dir
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCloneHasMainAndEveryBranch(t *testing.T) {
	s := newSite(t)
	for n := range 5 {
		s.push(s.branch, fmt.Sprintf("line %d", n))
	}
	other := s.born("web-2")
	s.ok(other.Patch("hits", []byte("10")))
	_, err := other.Commit(t.Context(), "ten", s.now)
	s.ok(err)
	for _, version := range []string{"0", "1", "2"} {
		dir := s.clone("-c", "protocol.version="+version)
		if got := read(t, dir, "hits"); got != "5" {
			t.Errorf("protocol %s: hits is %q, want 5", version, got)
		}
		if got := read(t, dir, "access.log/00/00/00"); got != "line 0\nline 1\nline 2\nline 3\nline 4\n" {
			t.Errorf("protocol %s: the log is %q", version, got)
		}
		if got := mustGit(t, dir, "show", "origin/instance/web-2:hits"); got != "15" {
			t.Errorf("protocol %s: the other instance's hits are %q, want 15", version, got)
		}
		if got := mustGit(t, dir, "rev-parse", "origin/HEAD"); strings.TrimSpace(got) != s.main.String() {
			t.Errorf("protocol %s: HEAD is %s, want main at %s", version, got, s.main)
		}
	}
}

func TestFetchBringsTheNewsAlone(t *testing.T) {
	s := newSite(t)
	s.ok(s.branch.Put("big", bytes.Repeat([]byte("0123456789abcdef"), 1<<16)))
	s.push(s.branch, "first")
	dir := s.clone()
	for n := range 40 { // more than one round of haves
		s.push(s.branch, fmt.Sprintf("line %d", n))
	}
	mustGit(t, dir, "fetch", "-q")
	for n := range 3 {
		s.push(s.branch, fmt.Sprintf("again %d", n))
	}
	before := sent(s, func() { mustGit(t, dir, "fetch", "-q") })
	mustGit(t, dir, "fsck", "--strict")
	if got := mustGit(t, dir, "show", "origin/main:hits"); got != "44" {
		t.Errorf("hits after the fetch: %q, want 44", got)
	}
	if before > 16<<10 {
		t.Errorf("3 small commits cost %d bytes", before)
	}
	if out := mustGit(t, dir, "fetch"); out != "" {
		t.Errorf("a fetch without news prints %q", out)
	}
}

// sent returns the number of bytes that the server sends while f runs.
func sent(s *site, f func()) int {
	before := s.sent.Load()
	f()
	return int(s.sent.Load() - before)
}

type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	c.sent.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

func TestAFetchFindsManyHeads(t *testing.T) {
	s := newSite(t)
	s.push(s.branch, "first")
	dir := s.clone()
	for n := range 60 {
		b := s.born(pando.InstanceID(fmt.Sprintf("many-%d", n)))
		s.ok(b.Put(fmt.Sprintf("own/%d", n), []byte("x")))
		_, err := b.Commit(t.Context(), "own", s.now)
		s.ok(err)
	}
	mustGit(t, dir, "fetch", "-q")
	for n := range 60 {
		b := s.born(pando.InstanceID(fmt.Sprintf("many-%d", n)))
		s.push(b, fmt.Sprintf("of %d", n))
	}
	mustGit(t, dir, "fetch", "-q", "--prune")
	mustGit(t, dir, "fsck", "--strict")
	if got := mustGit(t, dir, "show", "origin/main:hits"); got != "61" {
		t.Errorf("hits: %q, want 61", got)
	}
}

func TestDepthIsGivenAndTaken(t *testing.T) {
	s := newSite(t)
	for n := range 20 {
		s.push(s.branch, fmt.Sprintf("line %d", n))
	}
	dir := s.clone("--depth", "3")
	if n := strings.Count(mustGit(t, dir, "log", "--first-parent", "--oneline"), "\n"); n != 3 {
		t.Errorf("a clone of depth 3 has %d commits of main", n)
	}
	s.push(s.branch, "news")
	mustGit(t, dir, "pull", "-q", "--ff-only")
	mustGit(t, dir, "fsck", "--strict")
	mustGit(t, dir, "fetch", "-q", "--depth", "8")
	mustGit(t, dir, "fsck", "--strict")
	mustGit(t, dir, "fetch", "-q", "--unshallow")
	mustGit(t, dir, "fsck", "--strict")
	if n := strings.Count(mustGit(t, dir, "log", "--first-parent", "--oneline"), "\n"); n != 22 {
		t.Errorf("the whole history has %d commits of main, want 22", n)
	}
}

func TestALongLogIsCloned(t *testing.T) {
	s := newSite(t)
	line := strings.Repeat("x", 99) + "\n"
	// 18 MB: more chunks than one folder holds
	s.ok(s.branch.Patch("access.log", []byte(strings.Repeat(line, 180_000))))
	s.push(s.branch, "the last")
	dir := s.clone()
	var all bytes.Buffer
	s.ok(filepath.WalkDir(filepath.Join(dir, "access.log"),
		func(p string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				all.WriteString(read(t, p))
			}
			return err
		}))
	if want := 180_000*len(line) + len("the last\n"); all.Len() != want {
		t.Errorf("the cloned log has %d bytes, want %d", all.Len(), want)
	}
}

func TestAPushIsRefusedInWords(t *testing.T) {
	s := newSite(t)
	s.push(s.branch, "first")
	dir := s.clone()
	s.ok(os.WriteFile(filepath.Join(dir, "hits"), []byte("1000"), 0o644))
	mustGit(t, dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "cheat")
	out, err := git(t, dir, "push", "origin", "HEAD:main")
	if err == nil || !strings.Contains(out, "403") {
		t.Errorf("a push: %v\n%s", err, out)
	}
	resp, err := http.Get(s.url() + "/info/refs?service=git-receive-pack")
	s.ok(err)
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.Contains(string(b), "not pushed to") {
		t.Errorf("the refusal is %q", b)
	}
}

func TestWhateverAPathIsCalledItsCloneIsSound(t *testing.T) {
	s := newSite(t)
	taken := 0
	for _, p := range []string{
		".git/config", ".GIT/x", ".gitmodules", ".gitattributes", "git~1/x", ".g\u200cit/x", ".git /x",
		".git./x", "a/.git:x", `a\.git\config`,
		"../x", "-x", " x", "x ", "ä/ö", "\xff\xfe", "a\tb", "a\rb", "con", "a:b", "x.lock", "@{x", "a.b",
		"a/b", "a-b", "a0", "00/00/00",
	} {
		if err := s.branch.Put(p, []byte("[submodule \"x\"]\n\turl = -evil\n")); err == nil {
			taken++
		}
	}
	s.push(s.branch, "line")
	dir := s.clone()
	if n := strings.Count(mustGit(t, dir, "ls-files", "-z"), "\x00"); n != taken+2 {
		t.Errorf("the clone has %d files, want %d", n, taken+2)
	}
}

func pkt(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }

func TestHostileRequests(t *testing.T) {
	s := newSite(t)
	s.push(s.branch, "first")
	hidden := state.Open(s.objects, pando.DefaultService("other"), nil)
	b, err := hidden.Born(t.Context(), "other-1", pando.ObjectID{})
	s.ok(err)
	s.ok(b.Put("secret", []byte("42")))
	secret, err := b.Commit(t.Context(), "secret", t0)
	s.ok(err)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 64<<20))
	_ = z.Close()
	main := s.main.String()
	for name, c := range map[string]struct {
		body   string
		packed bool
		status int
		says   string
	}{
		"nothing":                 {"", false, 400, "empty"},
		"no pkt-line":             {"zzzzzzzzzz", false, 400, "request"},
		"a length of 3":           {"0003", false, 400, "request"},
		"a length of 4":           {"0004", false, 400, "request"},
		"a length beyond the end": {"ffffwant", false, 400, "request"},
		"no want":                 {pkt("have "+main+"\n") + "0000", false, 400, "want"},
		"half a hash":             {pkt("want 0123\n") + "0000", false, 400, "request"},
		"wants without an end":    {pkt("want " + main + "\n"), false, 400, "request"},
		"junk after the wants": {pkt("want "+main+"\n") + "0000" + pkt("give me more\n"), false, 400,
			"have HASH"},
		"half a have": {pkt("want "+main+"\n") + "0000" + pkt("have 0123\n"), false, 400,
			"have HASH"},
		"a negative depth": {pkt("want "+main+" shallow\n") + pkt("deepen -1") + "0000", false, 400,
			"depth"},
		"a depth since": {pkt("want "+main+" shallow deepen-since\n") + pkt("deepen-since 1") + "0000",
			false, 400, "--depth"},
		"an unknown object": {pkt("want "+strings.Repeat("ab", 20)+"\n") + "0000" + pkt("done\n"), false,
			200, "not our ref"},
		"another service": {pkt("want "+secret.String()+"\n") + "0000" + pkt("done\n"), false, 200,
			"not our ref"},
		"a tree": {pkt("want "+treeOf(t, s)+"\n") + "0000" + pkt("done\n"), false, 200,
			"not our ref"},
		"too long":   {strings.Repeat(pkt("want "+main+"\n"), 100_000) + "0000", false, 413, "at most"},
		"a bomb":     {bomb.String(), true, 413, "at most"},
		"not packed": {"plain", true, 400, "unpack"},
	} {
		req, err := http.NewRequest(http.MethodPost, s.url()+"/git-upload-pack",
			strings.NewReader(c.body))
		s.ok(err)
		if c.packed {
			req.Header.Set("Content-Encoding", "gzip")
		}
		resp, err := http.DefaultClient.Do(req)
		s.ok(err)
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(got), c.says) ||
			strings.Contains(string(got), "PACK") {
			t.Errorf("%s: %d %.200q, want %d with %q", name, resp.StatusCode, got, c.status, c.says)
		}
	}
}

func TestWhatIsNotServed(t *testing.T) {
	s := newSite(t)
	s.push(s.branch, "first")
	for path, status := range map[string]int{
		"/state/nobody.git/info/refs?service=git-upload-pack":        404,
		"/state/web/info/refs":                                       404,
		"/state/web.git/HEAD":                                        404,
		"/state/web.git/info/refs":                                   403,
		"/state/..%2fetc.git/info/refs?service=git-upload-pack":      404,
		"/state/a/b/c.git/info/refs?service=git-upload-pack":         404,
		"/state/web.git/git-upload-pack":                             405,
		"/state/default/web.git/info/refs?service=git-upload-pack":   200,
		"/state/web.git/objects/info/packs":                          404,
		"/state/web.git/info/refs?service=git-upload-archive":        403,
		"/state/web.git/git-receive-pack":                            403,
		"/state/web.git/info/refs?service=git-upload-pack&x=../../x": 200,
	} {
		resp, err := http.Get(s.server.URL + path)
		s.ok(err)
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, status)
		}
	}
}

func treeOf(t *testing.T, s *site) string {
	t.Helper()
	dir := s.clone()
	return strings.TrimSpace(mustGit(t, dir, "rev-parse", "HEAD^{tree}"))
}

func TestAnEmptyStateIsNotThere(t *testing.T) {
	s := newSite(t)
	out, err := git(t, ".", "clone", s.url(), filepath.Join(t.TempDir(), "clone"))
	if err == nil || !strings.Contains(out, "not found") {
		t.Errorf("clone of nothing: %v\n%s", err, out)
	}
}

func FuzzReadAsk(f *testing.F) {
	id := strings.Repeat("ab", 20)
	for _, s := range []string{
		"0000",
		pkt("want "+id+" multi_ack_detailed side-band-64k\n") + "0000" + pkt("have "+id+"\n") + "0000",
		pkt("want "+id+" shallow\n") + pkt("shallow "+id) + pkt("deepen 3") + "0000" + pkt("done\n"),
		"0004", "fff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAsk(bytes.NewReader(b))
		if err == nil && len(a.wants) == 0 && string(b) != "0000" {
			t.Errorf("%q asks for nothing", b)
		}
	})
}

// The packs of one tenant's states leave turns to another tenant and to operators.
func TestATenantLeavesTurnsForOtherPacks(t *testing.T) {
	h := Handler(nil).(handler)
	ctx, cancel := context.WithCancel(t.Context())
	for range packTurns.Each {
		if _, err := h.turn(ctx, "acme"); err != nil {
			t.Fatal(err)
		}
	}
	waits := make(chan error)
	go func() { _, err := h.turn(ctx, "acme"); waits <- err }()
	for _, other := range []pando.Tenant{"bank", pando.DefaultTenant} {
		if _, err := h.turn(ctx, other); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("one more of acme: %v", err)
	}
}
