package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/store/bolt"
)

// A silent agent, for example after a failed start, does not cause a warning if there are no
// instances.
func TestDownSpeaksOfInstancesOnlyWhereThereAreAny(t *testing.T) {
	p := silentAgent(t)
	down := func() string {
		var said strings.Builder
		m := machine{&cli.Output{Env: cli.Env{Stderr: &said}}}
		killed, err := m.evacuate(t.Context(), p, time.Second, time.Millisecond)
		if err != nil || killed != strings.Contains(said.String(), "are killed") {
			t.Fatalf("killed: %v (%v): %s", killed, err, said.String())
		}
		return said.String()
	}
	slot := filepath.Join(p.sandboxes(), "3", "slot.json")
	if err := os.MkdirAll(filepath.Dir(slot), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, slot, `{"number": 3}`)
	if said := down(); said != "" {
		t.Errorf("without an instance it returns %q", said)
	}
	writeFile(t, slot, `{"number": 3, "instance": "web-1"}`)
	if said := down(); !strings.Contains(said, "did not drain") {
		t.Errorf("with an instance it returns %q", said)
	}
}

// silentAgent starts a process whose command line looks like that of an agent.
func silentAgent(t *testing.T) place {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	silent := exec.Command("cat", "agent")
	silent.Dir = dir
	if err := silent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = silent.Process.Kill()
		_ = silent.Wait()
	})
	p := place{folders: folders{Run: dir}, Host: "h1"}
	writeFile(t, pidFile(p, "agent"), fmt.Sprint(silent.Process.Pid))
	return p
}

// leaver is an agent that leaves some instances behind.
type leaver int

func (l leaver) Leave(context.Context, time.Duration) (int, error) { return int(l), nil }

// An agent that starts anew, because its host's server was taken out, is asked again. `pando down`
// killed its instances before.
func TestDownAsksAnAgentThatStartsAnewAgain(t *testing.T) {
	for _, left := range []int{0, 2} {
		p := silentAgent(t)
		slot := filepath.Join(p.sandboxes(), "3", "slot.json")
		if err := os.MkdirAll(filepath.Dir(slot), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, slot, `{"number": 3, "instance": "web-1"}`)
		l, err := net.Listen("unix", p.agent())
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: peer.OwnHandler(leaver(left), nil, http.NotFoundHandler())}
		t.Cleanup(func() { _ = s.Close() })
		go func() {
			if conn, err := l.Accept(); err == nil { // it ends in the middle of the question
				conn.Close()
			}
			_ = s.Serve(l)
		}()
		var said strings.Builder
		m := machine{&cli.Output{Env: cli.Env{Stderr: &said}}}
		killed, err := m.evacuate(t.Context(), p, time.Second, time.Minute)
		if err != nil || killed != (left > 0) || !strings.Contains(said.String(), "is asked again") {
			t.Errorf("%d left: killed %v (%v): %s", left, killed, err, said.String())
		}
	}
}

// Network functions run without the daemons. Their sockets survive `pando down`.
func TestDownLeavesWhatFunctionsKeep(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, "run/api.sock", "run/sandbox/3/slot.json", "run/fn/nat/control.sock",
		"bare/api.sock")
	err := errors.Join(removeRun(filepath.Join(dir, "run")), removeRun(filepath.Join(dir, "bare")),
		removeRun(filepath.Join(dir, "never")))
	if err != nil {
		t.Fatal(err)
	}
	got, want := below(t, dir), []string{"", "/run", "/run/fn", "/run/fn/nat",
		"/run/fn/nat/control.sock"}
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// The data folder may be a mount point in another namespace, so purge empties it and does not
// remove it.
func TestPurgeEmptiesTheDataFolder(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, "data/state.db", "data/store/wal", "data/fn/default/nat.meter")
	err := errors.Join(empty(filepath.Join(dir, "data")), empty(filepath.Join(dir, "never")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := below(t, dir), []string{"", "/data"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// A purge keeps volumes unless it is asked for them, and names every service that loses something.
func TestPurgeNamesWhatItDeletesAndKeepsVolumes(t *testing.T) {
	dir := t.TempDir()
	p := place{folders: folders{Run: dir + "/run", Data: dir + "/data"}, Host: "h1"}
	files(t, p.Data, "volumes/default/db/data/1/table", "volumes/shop/queue/log/shared/0", "store/wal",
		"trust/key")
	states, err := bolt.Open(p.states())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(states.Update(t.Context(), pando.ObjectsUpdate{
		Refs: map[string]pando.ObjectID{"default/counter/merged/head": {7}},
	}), states.Close())
	if err != nil {
		t.Fatal(err)
	}
	plan := func(volumes bool) (purge, string) {
		t.Helper()
		u, err := planPurge(t.Context(), p, volumes) // no server answers
		var said strings.Builder
		if err := errors.Join(err, u.addStates(p.states())); err != nil {
			t.Fatal(err)
		}
		u.print(&said, p.volumes())
		return u, said.String()
	}
	for _, c := range []struct {
		volumes bool
		want    string
	}{{false, "the volumes of db, shop/queue stay in " + p.volumes()},
		{true, "--purge deletes the volumes on this host of: db, shop/queue"}} {
		if _, said := plan(c.volumes); !strings.Contains(said, c.want) ||
			!strings.Contains(said, "the states on this host of: counter") ||
			!strings.Contains(said, "not all names are known: ") {
			t.Errorf("with --volumes=%v it says:\n%s", c.volumes, said)
		}
	}
	u, _ := plan(false)
	if err := u.emptyData(p); err != nil {
		t.Fatal(err)
	}
	if got := below(t, p.Data); !slices.Contains(got, "/volumes/default/db/data/1/table") ||
		!slices.Contains(got, "/volumes/shop/queue/log/shared/0") || slices.Contains(got, "/store") {
		t.Errorf("left are %q", got)
	}
	u, _ = plan(true)
	if err := u.emptyData(p); err != nil {
		t.Fatal(err)
	}
	if got := below(t, p.Data); !slices.Equal(got, []string{""}) {
		t.Errorf("with --volumes, left are %q", got)
	}
}

// files creates empty files below a folder.
func files(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, f := range names {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, f), "")
	}
}

// below lists everything below a folder.
func below(t *testing.T, dir string) (all []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, dir))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
