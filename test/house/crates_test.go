package house

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// crateRanks is the table of ranks of the Rust crates, by folder. A crate depends on lower ranks
// only. Its tests may use any crate.
var crateRanks = map[string]int{
	"function/abi": 0, "function/assign": 0, "function/flow": 0, "function/rules": 0,
	"function/walls": 0,
	"function/chain": 1, "function/handover": 1, "function/net": 1, "function/traffic": 1,
	"function/wasm":  1,
	"function/group": 2, "function/meter": 2, "function/outlog": 2, "function/simulator": 2,
	"function/twins": 3, "function/unit": 3,
	"memory/core": 0, "memory/guide-redis": 0, "memory/host": 1, "memory/pager": 1,
	"memory/launch": 2,
	"test/model":    0,
}

// crate is one Cargo.toml of the workspace.
type crate struct {
	dir      string
	manifest string
}

// needs returns the folders of the crates that the code of x depends on.
func (x crate) needs() (out []string) {
	section := ""
	for line := range strings.Lines(x.manifest) {
		if strings.HasPrefix(line, "[") {
			section = strings.TrimSpace(line)
		}
		if section != "[dependencies]" {
			continue
		}
		if m := cratePath.FindStringSubmatch(line); m != nil {
			out = append(out, path.Join(x.dir, m[1]))
		}
	}
	return out
}

// breach returns the rule that a dependency breaks, or "".
func (x crate) breach(needed string) string {
	rank, ok := crateRanks[x.dir]
	if !ok {
		return "add the crate to the table of ranks"
	}
	low, ok := crateRanks[needed]
	if !ok {
		return needed + " is in no rank"
	}
	if low >= rank {
		return "a crate depends on lower ranks only"
	}
	return ""
}

func readCrates(t *testing.T) (out []crate) {
	t.Helper()
	files, err := filepath.Glob("../../*/*/Cargo.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Cargo.toml below the rooms (%v)", err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		dir := path.Dir(strings.TrimPrefix(filepath.ToSlash(name), "../../"))
		out = append(out, crate{dir, string(content)})
	}
	return out
}

func TestCratesDependDownward(t *testing.T) {
	found := readCrates(t)
	for _, x := range found {
		for _, needed := range x.needs() {
			if rule := x.breach(needed); rule != "" {
				t.Errorf("%s needs %s: %s", x.dir, needed, rule)
			}
		}
	}
	if len(found) != len(crateRanks) {
		t.Errorf("%d crates, %d in the table of ranks", len(found), len(crateRanks))
	}
}

// TestCratesShareOneDialect requires the workspace's edition and lints of every crate.
func TestCratesShareOneDialect(t *testing.T) {
	for _, x := range readCrates(t) {
		lines := strings.Split(x.manifest, "\n")
		for _, want := range []string{"edition.workspace = true", "[lints]", "workspace = true"} {
			if !slices.Contains(lines, want) {
				t.Errorf("%s/Cargo.toml has no line %q", x.dir, want)
			}
		}
	}
}

func TestABreachBetweenCratesIsFound(t *testing.T) {
	const manifest = "[dependencies]\npando-unit = { path = \"../unit\" }\n" +
		"[dev-dependencies]\npando-traffic = { path = \"../traffic\" }\n"
	chain := crate{"function/chain", manifest}
	if needs := chain.needs(); !slices.Equal(needs, []string{"function/unit"}) {
		t.Errorf("the chain needs %v", needs)
	}
	for needed, allowed := range map[string]bool{
		"function/flow": true, "function/net": false, "function/unit": false, "function/attic": false,
	} {
		if got := chain.breach(needed); (got == "") != allowed {
			t.Errorf("chain needs %s: breach %q, allowed should be %v", needed, got, allowed)
		}
	}
}
