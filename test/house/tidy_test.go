package house

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

const functionLinesMax = 70

// clockReaders lists the only places that read the wall clock. They are the one implementation of
// pando.Clock, the programs, and tests in virtual time. driver/sim runs in a synctest bubble. All
// other code receives the time or a pando.Clock. Add a driver by name if it must stamp outside
// events.
var clockReaders = []string{
	"driver/clock/", "driver/sim/", "cmd/", "demo/", "bench/", "test/", "examples/",
	"lab/labtest/echo/",
}

// vagueNames are package names that do not describe the contents.
var vagueNames = map[string]bool{"util": true, "utils": true, "common": true, "helper": true,
	"helpers": true, "manager": true}

// The words are put together here so that this file does not find itself.
var (
	unfinished  = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	machinePath = regexp.MustCompile(`"/(wo` + `rk|ro` + `ot|home)/`)
)

func TestFunctionsAreShort(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			first, last := s.fset.Position(f.Pos()), s.fset.Position(f.End())
			if n := last.Line - first.Line + 1; n > functionLinesMax {
				t.Errorf("%s: %s has %d lines, at most %d", first, f.Name.Name, n, functionLinesMax)
			}
		}
	}
}

func TestNothingIsLeftUnfinished(t *testing.T) {
	for _, s := range sources(t) {
		if m := unfinished.FindString(s.text); m != "" {
			t.Errorf("%s: says %s: finish it, or open an issue", s.path, m)
		}
		if m := machinePath.FindString(s.text); m != "" {
			t.Errorf("%s: contains the path %s… of one machine", s.path, m)
		}
	}
}

func TestPackagesAreNamedAndDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if vagueNames[s.file.Name.Name] {
			t.Errorf("%s: package %s: name it after what it holds", s.path, s.file.Name.Name)
		}
		if s.isTest() {
			continue
		}
		documented[s.dir] = documented[s.dir] || s.file.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment: describe its purpose and its limits", dir)
		}
	}
}

func TestTimeIsGivenNotRead(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok || pkg.Name != "time" {
				return true
			}
			where := s.fset.Position(sel.Pos())
			switch {
			case s.isTest() && sel.Sel.Name == "Sleep" && !inVirtualTime(s.file):
				t.Errorf("%s: time.Sleep in a test: wait for the condition with a deadline", where)
			case !s.isTest() && (sel.Sel.Name == "Now" || sel.Sel.Name == "Since") && !readsClock(s.path):
				t.Errorf("%s: time.%s: take the time as an argument or from pando.Clock", where, sel.Sel.Name)
			}
			return true
		})
	}
}

// The runtime compares a deadline with its own clock. A virtual host's clock differs from it, so each
// deadline of a pando.Clock is over at once there, or far too late.
var clockDeadline = regexp.MustCompile(`Deadline\([^)]*[cC]lock\.Now\(\)`)

func TestDeadlinesAreOnTheClockOfTheRuntime(t *testing.T) {
	for _, s := range sources(t) {
		for n, line := range strings.Split(s.text, "\n") {
			if !s.isTest() && clockDeadline.MatchString(line) {
				t.Errorf("%s:%d: end the wait by context.WithTimeout: %s", s.path, n+1, strings.TrimSpace(line))
			}
		}
	}
	if !clockDeadline.MatchString("_ = c.SetReadDeadline(r.Clock.Now().Add(wait))") {
		t.Error("a deadline of a pando.Clock is not found")
	}
}

func readsClock(file string) bool {
	for _, prefix := range clockReaders {
		if strings.HasPrefix(file, prefix) {
			return true
		}
	}
	return false
}

// inVirtualTime reports whether a file's sleeps cost nothing, because it runs in synctest bubbles.
func inVirtualTime(f *ast.File) bool {
	for _, spec := range f.Imports {
		if spec.Path.Value == `"testing/synctest"` {
			return true
		}
	}
	return false
}
