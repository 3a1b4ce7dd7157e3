package house

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// testLinesMin is the least ratio of lines of tests to lines of code, in Go and Rust. It may only
// grow. The goal is 0.8.
const testLinesMin = 0.63

// testFolders hold test support and test programs, in addition to `_test.go` and `tests/`.
var testFolders = []string{"test/", "bench/", "lab/labtest/"}

// testLines returns the number of lines of a Go or Rust file that are tests.
func (x text) testLines() int {
	for _, dir := range testFolders {
		if strings.HasPrefix(x.path, dir) {
			return len(x.lines)
		}
	}
	switch {
	case x.language == "go" && strings.HasSuffix(x.path, "_test.go"):
		return len(x.lines)
	case x.language == "rust" && (strings.Contains(x.path, "/tests/") ||
		strings.Contains(x.path, "/examples/") ||
		strings.Contains(x.path, "/benches/") || path.Base(x.path) == "tests.rs"):
		return len(x.lines)
	case x.language == "rust":
		return x.testModules()
	}
	return 0
}

// testModules returns the number of lines in a Rust file's modules with #[cfg(test)].
func (x text) testModules() (lines int) {
	for i := 0; i < len(x.lines); i++ {
		if !strings.HasPrefix(x.lines[i], "#[cfg(test)]") && !strings.HasPrefix(x.lines[i],
			"#[cfg(all(test") {
			continue
		}
		for j := i + 1; j < len(x.lines); j++ {
			if strings.HasPrefix(x.lines[j], "}") || j == i+1 && strings.HasSuffix(x.lines[j], ";") {
				lines += j - i + 1
				i = j
				break
			}
		}
	}
	return lines
}

// TestTestsKeepUpWithTheCode prints the ratio of tests to code, and fails if it falls.
func TestTestsKeepUpWithTheCode(t *testing.T) {
	type size struct{ tests, code int }
	rooms, all := map[string]size{}, size{}
	for _, x := range texts(t) {
		if x.language != "go" && x.language != "rust" {
			continue
		}
		n := x.testLines()
		room := rooms[x.language+" "+x.room()]
		room.tests, room.code = room.tests+n, room.code+len(x.lines)-n
		rooms[x.language+" "+x.room()] = room
		all.tests, all.code = all.tests+n, all.code+len(x.lines)-n
	}
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		t.Logf("%-16s %6d lines of tests, %6d of code", name, rooms[name].tests, rooms[name].code)
	}
	ratio := float64(all.tests) / float64(all.code)
	t.Logf("tests : code %.3f (%d to %d lines), the goal is 0.8", ratio, all.tests, all.code)
	if ratio < testLinesMin {
		t.Errorf("tests : code is %.3f, at least %.2f: write the tests of the new code", ratio,
			testLinesMin)
	}
}

func TestTestLinesAreCounted(t *testing.T) {
	module := []string{"fn f() {}", "", "#[cfg(test)]", "mod tests {", "    fn g() {}", "}", ""}
	for _, c := range []struct {
		path, language string
		lines          []string
		want           int
	}{
		{"room/a.go", "go", module, 0},
		{"room/a_test.go", "go", module, len(module)},
		{"test/e2e/help.go", "go", module, len(module)},
		{"room/src/a.rs", "rust", module, 4},
		{"room/src/lib.rs", "rust", []string{"#[cfg(test)]", "mod tests;", "fn f() {", "}"}, 2},
		{"room/tests/a.rs", "rust", module, len(module)},
		{"room/src/tests.rs", "rust", module, len(module)},
	} {
		if got := (text{c.path, c.language, c.lines}).testLines(); got != c.want {
			t.Errorf("%s: %d lines of tests, want %d", c.path, got, c.want)
		}
	}
}

// TestEveryPackageHasATest lists packages of Go without a test.
func TestEveryPackageHasATest(t *testing.T) {
	tested := map[string]bool{}
	for _, s := range sources(t) {
		tested[s.dir] = tested[s.dir] || s.isTest()
	}
	for _, dir := range slices.Sorted(maps.Keys(tested)) {
		if !tested[dir] {
			t.Errorf("%s has no test: write one for a promise of the package", dir)
		}
	}
}
