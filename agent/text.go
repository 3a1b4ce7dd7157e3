package agent

import (
	"fmt"
	"maps"
	"strings"
	"unicode"

	"pando.run/pando"
)

// Bounds on the reasons and inputs of an instance.
const (
	reasonBytesMax   = 400
	evidenceBytesMax = 1000 // of an agent's reason that quotes one of an instance
	inputsMax        = 32
	inputBytesMax    = 64
)

// oneLine returns a text of an instance as one line of at most most bytes that is safe for a record
// and a terminal. Line breaks and control characters become spaces. Other unprintable characters
// become U+FFFD.
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

// reasonOf returns the reason of an ask.
func reasonOf(ask pando.Ask) string {
	if reason := oneLine(ask.Reason, reasonBytesMax); reason != "" {
		return reason
	}
	return "it gave no reason"
}

// inputsOf returns the numbers of an ask.
func inputsOf(ask pando.Ask) (map[string]float64, error) {
	if len(ask.Inputs) > inputsMax {
		return nil, fmt.Errorf("inputs: %w: %d numbers, at most %d",
			pando.ErrTooLarge, len(ask.Inputs), inputsMax)
	}
	return named(ask.Inputs), nil
}

// named returns a copy with clean names.
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
