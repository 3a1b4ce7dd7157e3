package attack

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// named are a place of docs/security.md, in backquotes, and the tests of it that follow: functions of
// Go, and in quotes those of Rust.
var named = regexp.MustCompile("`([^`\\s]+)`|\\b((?:Test|Fuzz)[A-Z]\\w+)|\"([a-z]\\w*_\\w+)\"")

// citations returns the tests that a page names.
func citations(page string) (all []Test) {
	place := ""
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		if m[1] != "" {
			place = m[1]
			continue
		}
		all = append(all, Test{place, m[2] + m[3]})
	}
	return all
}

// Each test that docs/security.md names is there.
func TestThePageNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	all := citations(string(text))
	if len(all) < 150 {
		t.Fatalf("the page names %d tests: this test does not read it", len(all))
	}
	for _, one := range all {
		if known[one.Place] == nil {
			if known[one.Place], err = names(one.Place); err != nil {
				t.Errorf("%s: %v", one.Name, err)
				continue
			}
		}
		if !slices.Contains(known[one.Place], one.Name) {
			t.Errorf("%s has no test %s", one.Place, one.Name)
		}
	}
	bad := citations(strings.Replace(string(text), "TestNoise", "TestNoSuchNoise", 1))
	if !slices.Contains(bad, Test{"driver/cluster/dns", "TestNoSuchNoise"}) {
		t.Error("an invented test is not read")
	}
}
