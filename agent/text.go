package agent

import (
	"fmt"
	"maps"
	"strings"
	"unicode"

	"pando.run/pando"
)

// Bounds of an instance's reasons.
const (
	reasonBytesMax   = 400
	evidenceBytesMax = 1000 // of a reason of the agent's that quotes it
	inputsMax        = 32
	inputBytesMax    = 64
)

// oneLine is a text of an instance as it may stand in a record: one line of at most most bytes,
// without what a terminal would obey. Line breaks and control characters become spaces, other
// unprintable characters U+FFFD.
func oneLine(s string, most int) string {
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

// reasonOf is the reason of an ask.
func reasonOf(ask pando.Ask) string {
	if reason := oneLine(ask.Reason, reasonBytesMax); reason != "" {
		return reason
	}
	return "it gave no reason"
}

// inputsOf are the numbers of an ask.
func inputsOf(ask pando.Ask) (map[string]float64, error) {
	if len(ask.Inputs) > inputsMax {
		return nil, fmt.Errorf("inputs: %w: %d numbers, at most %d", pando.ErrTooLarge, len(ask.Inputs), inputsMax)
	}
	return named(ask.Inputs), nil
}

// named is a copy whose names are clean.
func named(m map[string]float64) map[string]float64 {
	out := maps.Clone(m)
	for name, v := range m {
		if clean := oneLine(name, inputBytesMax); clean != name {
			delete(out, name)
			out[clean] = v
		}
	}
	return out
}
