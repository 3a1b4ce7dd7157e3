package cli

import (
	"cmp"
	"strings"
	"unicode"
)

// Person returns the name of the operator for the record, as the environment gives it: at most 60
// plain characters.
func Person(getenv func(string) string) string {
	name := cmp.Or(getenv("PANDO_OPERATOR"), getenv("SUDO_USER"), getenv("USER"))
	plain := strings.Map(func(r rune) rune {
		if r > ' ' && r < unicode.MaxASCII {
			return r
		}
		return -1
	}, name)
	return plain[:min(len(plain), 60)]
}
