package probe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// FuzzTold makes any error fit for a record and a terminal, and keeps its cause.
func FuzzTold(f *testing.F) {
	for _, text := range []string{"", "it answered 500", "\x1b]0;title\x07", "\xff",
		strings.Repeat("ä", toldBytesMax)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cause := errors.New(text)
		got := told(context.Background(), cause)
		if !errors.Is(got, cause) {
			t.Errorf("%q lost its cause", text)
		}
		if s := got.Error(); !utf8.ValidString(s) || len(s) > toldBytesMax+len("…") ||
			strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q becomes %q", text, s)
		}
	})
}

func TestAHintFollowsTheCause(t *testing.T) {
	late, end := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer end()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"late", late, errors.New("x"), "no answer in time (`timeout` in the spec)"},
		{"refused", t.Context(), unix.ECONNREFUSED, "not on 127.0.0.1 alone"},
		{"another error", t.Context(), errors.New("it answered 404"), "it answered 404"},
	} {
		if got := told(c.ctx, c.err).Error(); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
