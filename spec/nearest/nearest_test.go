package nearest

import "testing"

func TestWordFindsTheWordThatWasMeant(t *testing.T) {
	known := []string{"scale", "max", "min", "ports", "health", "stop_signal"}
	for _, c := range []struct{ word, want string }{
		{"scael", "scale"}, {"scale", "scale"}, {"scal", "scale"}, {"maxx", "max"}, {"mim", "min"},
		{"port", "ports"}, {"stop-signl", "stop_signal"},
		{"zzzzzz", ""}, {"", ""}, {"healthy", "health"}, {"helath", "health"},
	} {
		if got := Word(c.word, known); got != c.want {
			t.Errorf("Word(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}
