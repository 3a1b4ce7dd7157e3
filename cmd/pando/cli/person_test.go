package cli

import (
	"strings"
	"testing"
)

func TestThePersonIsNamedInPlainCharacters(t *testing.T) {
	for _, c := range []struct {
		vars map[string]string
		want string
	}{
		{nil, ""}, {map[string]string{"USER": "root"}, "root"},
		{map[string]string{"USER": "root", "SUDO_USER": "anna"}, "anna"},
		{map[string]string{"SUDO_USER": "anna", "PANDO_OPERATOR": "ci job\r\n7ü"}, "cijob7"},
		{map[string]string{"USER": strings.Repeat("x", 90)}, strings.Repeat("x", 60)},
	} {
		if got := Person(func(k string) string { return c.vars[k] }); got != c.want {
			t.Errorf("%v: %q, want %q", c.vars, got, c.want)
		}
	}
}
