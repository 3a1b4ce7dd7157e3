package problem

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"pando.run/pando"
)

// Codes are unique in both spellings, and each leads back to its sentinel with the same text.
func TestEveryCodeLeadsBackToItsSentinel(t *testing.T) {
	seen := map[string]error{}
	for _, k := range Kinds {
		for _, code := range []string{k.Code, BetweenHosts(k.Code)} {
			if other, taken := seen[code]; taken && !errors.Is(other, k.Err) {
				t.Errorf("code %q stands for %v and for %v", code, other, k.Err)
			}
			seen[code] = k.Err
			back := Error(code, "drain web: because")
			if !errors.Is(back, k.Err) || back.Error() != "drain web: because" {
				t.Errorf("%q becomes %v", code, back)
			}
		}
		if strings.Contains(BetweenHosts(k.Code), "_") || k.Status < 400 || k.Status > 599 {
			t.Errorf("%v: code %q, status %d", k.Err, k.Code, k.Status)
		}
		got, ok := Of(fmt.Errorf("deploy web: %w: because", k.Err))
		if !ok || got != k {
			t.Errorf("%v has the kind %+v", k.Err, got)
		}
	}
	if _, ok := Of(errors.New("a bug")); ok {
		t.Error("an error without a sentinel has a kind")
	}
	if err := Error("news", "text"); err.Error() != "text" || errors.Unwrap(err) != nil {
		t.Errorf("an unknown code becomes %v", err)
	}
}

// An error of several sentinels has the first of the list.
func TestAnErrorHasTheFirstOfItsKinds(t *testing.T) {
	for n, first := range Kinds {
		for _, second := range Kinds[n+1:] {
			if got, _ := Of(errors.Join(second.Err, first.Err)); got.Err != first.Err {
				t.Errorf("%v with %v has the kind of %v", first.Err, second.Err, got.Err)
			}
		}
	}
}

// The table has every sentinel of the root.
func TestNoSentinelIsLeftOut(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../doc.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{}
	for _, k := range Kinds {
		texts[fmt.Sprintf("%q", k.Err.Error())] = true
	}
	sentinels := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Err") {
			return true
		}
		sentinels++
		if !texts[v.Values[0].(*ast.CallExpr).Args[0].(*ast.BasicLit).Value] {
			t.Errorf("%s has no code: a caller over the wire cannot test for it", v.Names[0].Name)
		}
		return true
	})
	if sentinels < 10 || !texts[fmt.Sprintf("%q", pando.ErrRefused.Error())] {
		t.Errorf("found %d sentinels: the test looks in the wrong place", sentinels)
	}
}
