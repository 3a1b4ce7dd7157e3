package function

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	option   = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`)
	standard = regexp.MustCompile(`\[default: ([^\]]*)\]`)
)

// Go describes the flags of `pando fn run` and `pando fn test`, and pando-unit parses them. Both
// have the same flags with the same defaults.
func TestFlagsAreThoseOfPandoUnit(t *testing.T) {
	path, err := filepath.Abs("../../../bin/" + binary)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(path); err != nil {
		t.Skip("bin/pando-unit is not there (deploy/build-unit): make test-all runs it")
	}
	for command, rows := range map[string][]row{
		"run":  slices.Concat(unitRows, chainRows, loneRows),
		"test": slices.Concat(testRows, chainRows),
	} {
		help, err := exec.Command(path, command, "--help").Output()
		if err != nil {
			t.Fatal(err)
		}
		defaults, at := map[string]string{}, option.FindAllSubmatchIndex(help, -1)
		for n, m := range at {
			end := len(help)
			if n+1 < len(at) {
				end = at[n+1][0]
			}
			name := string(help[m[2]:m[3]])
			defaults[name] = ""
			if d := standard.FindSubmatch(help[m[0]:end]); d != nil {
				defaults[name] = strings.Trim(string(d[1]), `"`)
			}
		}
		delete(defaults, "help")
		for _, r := range rows {
			def, ok := defaults[r.name]
			if !ok || def != r.def {
				t.Errorf("%s: pando-unit has --%s: %v, with the default %q, and Go has %q",
					command, r.name, ok, def, r.def)
			}
			delete(defaults, r.name)
		}
		for name := range defaults {
			t.Errorf("%s: Go has no row for --%s of pando-unit", command, name)
		}
	}
}
