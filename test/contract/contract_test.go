package contract

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando/driver/sandbox/process/shim"
	"pando.run/pando/driver/sandbox/process/wire"
)

// update writes the table of the guide anew.
var update = flag.Bool("update", false, "write the table of docs/guides/bring-your-own-image.md anew")

// The test binary is also the shim of its instances, and runs in a network of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == wire.ShimRole {
		os.Exit(shim.Main(os.Args[2:]))
	}
	const own = "CONTRACT_TEST_NETNS"
	if os.Geteuid() == 0 && os.Getenv(own) == "" {
		runtime.LockOSThread() // Pdeathsig refers to this thread's death
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), own+"=own")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
		if cmd.Run() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if lo, err := netlink.LinkByName("lo"); err == nil && os.Getenv(own) != "" {
		_ = netlink.LinkSetUp(lo) // Podman's network needs it
	}
	os.Exit(m.Run())
}

// observed are the cases whose program observes; the others only end.
var observed = map[string]container{
	"root": {words: []string{"observe"}}, "user": {user: "app", words: []string{"observe"}},
	"init":   {init: true, words: []string{"observe"}},
	"kernel": {user: "app", kernel: true, words: []string{"observe"}},
}

// ends are the cases of which the end and the output count.
var ends = map[string]container{
	"exit-0": {words: []string{"exit", "0"}}, "exit-3": {words: []string{"exit", "3"}},
	"killed": {words: []string{"kill", "9"}}, "terminates-itself": {words: []string{"kill", "15"}},
	"aborts-itself":      {words: []string{"kill", "6"}},
	"segfault-with-init": {init: true, words: []string{"kill", "15"}},
	"stop-signal":        {words: []string{"await"}, stop: true},
	"no-handler":         {words: []string{"sleep"}, stop: true},
	"lines":              {words: []string{"say", "one", "", "  two  ", "ä"}},
}

type runner interface {
	run(name string, c container) ended
}

// observations returns all that a runtime shows, by CASE/FAMILY/NAME.
func observations(by runner) map[string]string {
	out := map[string]string{}
	for name, c := range observed {
		for _, line := range by.run(name, c).lines {
			if what, value, ok := strings.Cut(line, "\t"); ok {
				out[name+"/"+what] = value
			}
		}
	}
	for name, c := range ends {
		e := by.run(name, c)
		out["end/"+name+"/code"] = fmt.Sprint(e.code)
		if text := strings.Join(e.lines, "|"); !strings.Contains(text, "goroutine") { // a trace of Go's
			out["end/"+name+"/output"] = text
		}
	}
	by.run("keeps-1", container{volume: "kept", words: []string{"write", "/keep/seed"}})
	again := by.run("keeps-2", container{volume: "kept", words: []string{"observe"}})
	for _, line := range again.lines {
		if value, ok := strings.CutPrefix(line, "volumes/file of the named one\t"); ok {
			out["again/volumes/file of the named one"] = value
		}
	}
	return out
}

// Each observation is the same in Podman, or a row of the table says why not.
func TestAnInstanceIsWhatPodmanShows(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts some twenty containers: make test-all runs it")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	image := "oci:" + makeImage(t) + ":latest"
	theirs := observations(newPodman(t, image))
	ours := observations(newPando(t, image))
	if len(theirs) < 150 || len(ours) < 150 {
		t.Fatalf("%d observations of Podman and %d of Pando, want at least 150", len(theirs), len(ours))
	}
	open, idle := Compare(theirs, ours, readTable(t))
	for _, d := range open {
		t.Errorf("%s: Podman %q, Pando %q", d.Name, d.Podman, d.Pando)
	}
	for _, r := range idle {
		t.Errorf("a row explains nothing: %s", r.Pattern)
	}
	t.Logf("%d observations", len(theirs))
	checkFamilies(t, theirs, readTable(t))
}

// checkFamilies reports a family with fewer than six observations that no row is about, and one of
// which a change would not be seen.
func checkFamilies(t *testing.T, seen map[string]string, rows []Row) {
	t.Helper()
	plain := map[string][]string{}
	for name := range seen {
		about := func(r Row) bool { return r.Matches(name) }
		if parts := strings.Split(name, "/"); parts[0] == "root" && !slices.ContainsFunc(rows, about) {
			plain[parts[1]] = append(plain[parts[1]], name)
		}
	}
	if len(plain) < 16 {
		t.Errorf("%d families, want 16", len(plain))
	}
	for family, names := range plain {
		if len(names) < 6 {
			t.Errorf("the family %s has %d observations without a row, want at least 6", family, len(names))
		}
		changed := maps.Clone(seen)
		changed[names[0]] += " changed"
		open, _ := Compare(seen, changed, rows)
		if len(open) != 1 || open[0].Name != names[0] {
			t.Errorf("a change of %s is not seen: %v", names[0], open)
		}
	}
}

// readTable reads the table, which has at most 25 rows.
func readTable(t *testing.T) []Row {
	t.Helper()
	text, err := os.ReadFile("differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := ReadRows(string(text))
	if err != nil || len(rows) > 25 {
		t.Fatalf("%d rows, %v; want at most 25", len(rows), err)
	}
	return rows
}

// The guide has the table.
func TestTheGuideHasTheTable(t *testing.T) {
	const guide, begin, end = "../../docs/guides/bring-your-own-image.md",
		"<!-- Made from test/contract/differences.txt by: go test ./test/contract -update -->\n",
		"<!-- End -->\n"
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", guide)
	}
	want := before + begin + Table(readTable(t)) + end + after
	if *update {
		err = os.WriteFile(guide, []byte(want), 0o644)
	}
	if err != nil || want != string(text) && !*update {
		t.Errorf("%s is stale (%v): run go test ./test/contract -update", guide, err)
	}
}

// A change of any family is a difference, and so is an observation that only one of both has.
func TestADifferenceWithoutARowIsReported(t *testing.T) {
	rows, err := ReadRows("# a comment\n*/users/chown *, root/pid/x | ids | they end\n")
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	podman := map[string]string{"root/pid/is 1": "true", "user/users/chown 7": "ok", "root/pid/y": "1"}
	pando := map[string]string{"root/pid/is 1": "false", "user/users/chown 7": "refused"}
	open, idle := Compare(podman, pando, rows)
	if fmt.Sprint(open) != "[{root/pid/is 1 true false} {root/pid/y 1 }]" || len(idle) != 0 {
		t.Errorf("open %v, idle %v", open, idle)
	}
	if _, idle := Compare(podman, podman, rows); len(idle) != 1 {
		t.Errorf("a row without a difference is not named")
	}
	if _, err := ReadRows("a | b"); err == nil {
		t.Error("a row without a reason is taken")
	}
}
