//go:build failpoints

package failpoint

import (
	"slices"
	"testing"
)

func TestAHitCallsTheHookWithItsName(t *testing.T) {
	Hit("before there is a hook")
	before := OnHit
	defer func() { OnHit = before }()
	var got []string
	OnHit = func(name string) { got = append(got, name) }
	Hit("a")
	Hit("b")
	if want := []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("the hook received %q, want %q", got, want)
	}
}
