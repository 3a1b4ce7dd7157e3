package contract

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando/adapter/recipe"
)

// suites are the regression tests of others, with the file that each needs, how to get it, and the
// least number of tests that pass in both runtimes.
var suites = map[string]struct {
	needs, cure string
	least       int
}{
	"perl":    {"perl/done", prepare, 2000},
	"busybox": {"busybox/done", prepare, 700},
	"go":      {"go/src/net/tests", prepare, 4000},
	"python": {"/usr/lib/python3.11/test/test_os.py",
		"apt-get install libpython3.11-testsuite", 2000},
}

const prepare = "test/contract/suites/prepare makes it"

// suitesImage makes an image of a folder that suites/prepare filled.
func suitesImage(t *testing.T, folder string) string {
	t.Helper()
	dir := t.TempDir()
	text := `packages: [bash, dash, coreutils, findutils, grep, sed, mawk, debianutils, diffutils, procps, hostname,
  netbase, tzdata, util-linux, tar, bzip2, gzip, xz-utils, perl, python3, libpython3.11-testsuite]
users: {app: 1000}
files: {` + folder + `: /suites}
environment: {PATH: "/usr/local/bin:/usr/bin:/bin"}
entrypoint: [/suites/run]
command: [none]
`
	file := filepath.Join(dir, "image.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(dir, "image.tar")
	if _, err := recipe.Build(t.Context(), r, tar, "suites:latest"); err != nil {
		t.Fatal(err)
	}
	return "docker-archive:" + tar
}

// The regression tests of four languages have the same results in Podman and in an instance.
func TestTheLanguagesOwnTestsHaveTheSameResults(t *testing.T) {
	folder := os.Getenv("PANDO_SUITES")
	if folder == "" {
		t.Skip("it runs for half an hour: make soak runs it, with PANDO_SUITES=FOLDER of suites/prepare")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	image := suitesImage(t, folder)
	podman, pando := newPodman(t, image), newPando(t, image)
	rows := readTable(t)
	for suite, want := range suites {
		for user, words := range map[string]string{"root": "", "user": "app"} {
			t.Run(suite+"-"+user, func(t *testing.T) {
				needs := want.needs
				if !filepath.IsAbs(needs) {
					needs = filepath.Join(folder, needs)
				}
				if _, err := os.Stat(needs); err != nil {
					t.Skipf("%s is missing: %s", needs, want.cure)
				}
				c := container{user: words, words: []string{suite}, large: true}
				theirs := results(t, user, want.least, podman.run("suite-"+suite+"-"+user, c))
				ours := results(t, user, want.least, pando.run("suite-"+suite+"-"+user, c))
				open, _ := Compare(theirs, ours, rows)
				for _, d := range open {
					t.Errorf("%s: Podman %q, Pando %q", d.Name, d.Podman, d.Pando)
				}
			})
		}
	}
}

// results returns what a suite printed, by USER/SUITE/TEST.
func results(t *testing.T, user string, least int, e ended) map[string]string {
	t.Helper()
	out, right := map[string]string{}, 0
	for _, line := range e.lines {
		what, value, ok := strings.Cut(line, "\t")
		if !ok {
			continue
		}
		if count, rest, ok := strings.Cut(value, " right"); ok {
			n, _ := strconv.Atoi(count)
			right += n
			if strings.HasSuffix(what, "/all") { // each test that does not pass has its own line
				value = rest
			}
		}
		out[user+"/"+what] = value
	}
	if right < least {
		t.Fatalf("%d tests pass, want at least %d; exit code %d, output:\n%s", right, least, e.code,
			strings.Join(e.lines, "\n"))
	}
	t.Logf("%d tests pass", right)
	return out
}
