package records

import (
	"strings"
	"unicode"
)

// EvidenceBytesMax bounds a reason of an agent that quotes one of an instance.
const EvidenceBytesMax = 1000

// OneLine returns a text of an instance as one line of at most most bytes that is safe for a record
// and a terminal. Line breaks and control characters become spaces. Other unprintable characters
// become U+FFFD.
func OneLine(s string, most int) string {
	if len(s) > 4*most {
		s = s[:4*most]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r), unicode.IsControl(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
