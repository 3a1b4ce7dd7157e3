package attack

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const top = "../.." // of the tree

// heading finds the tests of a file in Rust.
var heading = regexp.MustCompile(`(?m)^\s*fn (\w+)\(`)

// names returns the functions of a place: of the tests in a folder of Go, or of a file in Rust.
func names(place string) (all []string, err error) {
	if strings.HasSuffix(place, ".rs") {
		text, err := os.ReadFile(filepath.Join(top, place))
		for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		return all, err
	}
	files, err := filepath.Glob(filepath.Join(top, place, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no tests in %s: %w", place, err)
	}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				all = append(all, fn.Name.Name)
			}
		}
	}
	return all, nil
}

// fault returns what is wrong with a row, given the functions of each place, or "".
func fault(r Row, known map[string][]string) string {
	if r.Want == Blocked && len(r.Tests) == 0 {
		return "is blocked, and no test tries it"
	}
	if r.Want == Open && len(r.Tests) > 0 {
		return "is open, and a test tries it"
	}
	if r.Want == Choice && strings.HasPrefix(r.ID, "H") {
		return "none of the holes may become a choice"
	}
	for _, one := range r.Tests {
		if !slices.Contains(known[one.Place], one.Name) {
			return fmt.Sprintf("%s has no test %s", one.Place, one.Name)
		}
	}
	return ""
}

func TestEveryAttackHasATestThatExists(t *testing.T) {
	known, seen := map[string][]string{}, map[string]bool{}
	for _, r := range Table {
		for _, one := range r.Tests {
			if known[one.Place] != nil {
				continue
			}
			var err error
			if known[one.Place], err = names(one.Place); err != nil {
				t.Error(err)
			}
		}
		if why := fault(r, known); why != "" {
			t.Errorf("%s (%s): %s", r.ID, r.Attack, why)
		}
		if seen[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		seen[r.ID] = true
	}
	for _, bad := range []Row{
		{"X1", Token, "no test", Blocked, nil}, {"H1", Token, "a hole", Choice, nil},
		{"X2", Token, "an invented test", Choice, by("driver/network/firewall", "TestInvented")},
	} {
		if fault(bad, known) == "" {
			t.Errorf("%s: no fault is found", bad.Attack)
		}
	}
}

var (
	item = regexp.MustCompile(`(?m)^- `)
	bold = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	id   = regexp.MustCompile(`^[A-Z]\d+$`)
	span = regexp.MustCompile(`^([A-Z])(\d+) to [A-Z](\d+)$`)
)

// documented returns the items of docs/security.md by the attacks that they name.
func documented(text string) map[string][]string {
	out := map[string][]string{}
	for _, one := range item.Split(text, -1) {
		for _, b := range bold.FindAllStringSubmatch(one, -1) {
			for _, word := range strings.Split(b[1], ", ") {
				if id.MatchString(word) {
					out[word] = append(out[word], one)
				}
				if m := span.FindStringSubmatch(word); m != nil {
					first, _ := strconv.Atoi(m[2])
					last, _ := strconv.Atoi(m[3])
					for n := first; n <= last; n++ {
						out[m[1]+strconv.Itoa(n)] = append(out[m[1]+strconv.Itoa(n)], one)
					}
				}
			}
		}
	}
	return out
}

// The page that operators read and the table have the same attacks, and a choice has its reason.
func TestTheGuideHasEveryAttack(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := documented(string(text))
	if len(page) < 70 {
		t.Fatalf("found %d attacks in docs/security.md", len(page))
	}
	for _, r := range Table {
		items := page[r.ID]
		if len(items) == 0 {
			t.Errorf("docs/security.md lacks %s (%s)", r.ID, r.Attack)
		}
		if r.Want == Choice && !slices.ContainsFunc(items, func(s string) bool {
			return strings.Contains(s, "Choice")
		}) {
			t.Errorf("%s (%s) is a choice, and docs/security.md has no reason", r.ID, r.Attack)
		}
	}
	for name := range page {
		if !slices.ContainsFunc(Table, func(r Row) bool { return r.ID == name }) {
			t.Errorf("docs/security.md has %s, and the table has not", name)
		}
	}
	for _, actor := range []Actor{Instance, Token, Image, Member, Network, User, Disk} {
		if !strings.Contains(string(text), "| "+actorText[actor]+" ") {
			t.Errorf("docs/security.md does not name the actor %q", actorText[actor])
		}
	}
}

// actorText has the actors in the words of docs/security.md.
var actorText = map[Actor]string{
	Instance: "an instance", Token: "a tenant's token", Image: "an image or a snapshot",
	Member: "a member", Network: "a machine of the network", User: "a user of a host",
	Disk: "a full disk",
}

// TestAllAttacks runs the test of every row. It takes as long as those tests of their rooms.
func TestAllAttacks(t *testing.T) {
	if os.Getenv("PANDO_ATTACKS") != "all" {
		t.Skip("it runs the tests of all rows once more (PANDO_ATTACKS=all): make soak runs it")
	}
	places := map[string][]string{}
	for _, r := range Table {
		if r.Want == Open {
			t.Errorf("%s (%s): no test of this tree tries it", r.ID, r.Attack)
		}
		for _, one := range r.Tests {
			if one.Place != "test/attack" && !slices.Contains(places[one.Place], one.Name) {
				places[one.Place] = append(places[one.Place], one.Name)
			}
		}
	}
	for place, tests := range places {
		t.Run(strings.ReplaceAll(place, "/", " "), func(t *testing.T) {
			said := run(t, place, tests)
			for _, name := range tests {
				passed := regexp.MustCompile(`(?m)^(--- PASS: ` + name + ` |test (\S+::)?` + name + ` \.\.\. ok$)`)
				if !passed.MatchString(said) {
					t.Errorf("%s did not pass", name)
				}
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// run runs tests of one place and returns their output.
func run(t *testing.T, place string, tests []string) string {
	t.Helper()
	c := exec.Command("go", "test", "-vet=off", "-count=1", "-v", "-timeout", "30m",
		"-run", "^("+strings.Join(tests, "|")+")$", "./"+place)
	if strings.HasSuffix(place, ".rs") {
		if _, err := exec.LookPath("cargo"); err != nil {
			t.Skip("needs cargo")
		}
		c = cargo(t, place, tests)
	}
	c.Dir = top
	said, _ := c.CombinedOutput() // the caller looks for each test
	return string(said)
}

var crateName = regexp.MustCompile(`(?m)^name = "([^"]+)"`)

// cargo returns the command that runs tests of one file in Rust.
func cargo(t *testing.T, file string, tests []string) *exec.Cmd {
	t.Helper()
	folder, rest, _ := strings.Cut(file, "/tests/")
	target := []string{"--test", strings.TrimSuffix(rest, ".rs")}
	if rest == "" {
		folder, _, _ = strings.Cut(file, "/src/")
		target = []string{"--lib"}
	}
	manifest, err := os.ReadFile(filepath.Join(top, folder, "Cargo.toml"))
	m := crateName.FindSubmatch(manifest)
	if err != nil || m == nil {
		t.Fatalf("%s has no crate: %v", file, err)
	}
	of := []string{"--release", "--locked", "--quiet", "-p", string(m[1])}
	// Tests of one file build no examples, and some of them run one.
	examples := exec.Command("cargo", append([]string{"build", "--examples"}, of...)...)
	examples.Dir = top
	if said, err := examples.CombinedOutput(); err != nil {
		t.Fatalf("the examples of %s: %v\n%s", m[1], err, said)
	}
	args := append(append([]string{"test"}, of...), target...)
	return exec.Command("cargo", append(append(args, "--", "--test-threads", "2", "--format", "pretty"),
		tests...)...)
}
