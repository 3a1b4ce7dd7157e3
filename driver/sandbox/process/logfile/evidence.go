package logfile

import (
	"strings"
	"unicode"
)

// Evidence makes a line fit for a record and for a terminal: short, and without control characters.
func Evidence(line string) string {
	cut := len(line) > LineBytesMax
	if cut {
		line = line[:LineBytesMax]
	}
	line = strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(line, string(unicode.ReplacementChar)))
	if cut {
		line += "…"
	}
	return line
}

// LineBytesMax is the kept length of a line of evidence: a record in the store is small.
const LineBytesMax = 400
