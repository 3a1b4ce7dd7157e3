package access

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pgregory.net/rapid"
)

// A token admits as many hosts as it allows, in any order with others, and never more.
func TestATokenIsUsedAsOftenAsItAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		var a Admissions
		tokens := map[string]TokenUse{}
		for n := range 4 {
			name := fmt.Sprint(n)
			tokens[name] = TokenUse{
				Name: name, Most: rapid.IntRange(1, 3).Draw(t, "most"),
				Before: rapid.IntRange(0, 2).Draw(t, "before"), Until: now.Add(time.Hour),
			}
		}
		used := map[string]int{}
		names := rapid.SampledFrom([]string{"0", "1", "2", "3"})
		for _, name := range rapid.SliceOf(names).Draw(t, "uses") {
			was := a.Tokens[name].Uses
			next, err := a.Use(tokens[name], now)
			left := tokens[name].Most - tokens[name].Before - used[name]
			if (err == nil) != (left > 0) {
				t.Fatalf("%s after %d uses: %v, %d are left", name, used[name], err, left)
			}
			if a.Tokens[name].Uses != was {
				t.Fatal("the former record has changed")
			}
			if err == nil {
				a = next
				used[name]++
			} else if !errors.Is(err, pando.ErrForbidden) {
				t.Fatal(err)
			}
		}
	})
}

// Ended tokens leave the record, and the others have a bound.
func TestUsedTokensAreBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	var a Admissions
	var err error
	for n := range tokensMax {
		use := TokenUse{Name: fmt.Sprint(n), Most: 2, Until: now.Add(time.Minute)}
		if a, err = a.Use(use, now); err != nil {
			t.Fatal(err)
		}
	}
	more := TokenUse{Name: "more", Most: 1, Until: now.Add(time.Hour)}
	if _, err := a.Use(more, now); !errors.Is(err, pando.ErrNoRoom) {
		t.Errorf("one token more: %v", err)
	}
	again := TokenUse{Name: "7", Most: 2, Until: now.Add(time.Minute)}
	if _, err := a.Use(again, now); err != nil {
		t.Errorf("a token in use: %v", err)
	}
	if a, err = a.Use(more, now.Add(2*time.Minute)); err != nil || len(a.Tokens) != 1 {
		t.Errorf("after the others have ended: %d tokens, %v", len(a.Tokens), err)
	}
}
