package self

import (
	"fmt"
	"maps"

	"pando.run/pando"
	"pando.run/pando/agent/records"
)

// Bounds on the reasons and inputs of an instance.
const (
	reasonBytesMax = 400
	inputsMax      = 32
	inputBytesMax  = 64
)

// reasonOf returns the reason of an ask.
func reasonOf(ask pando.Ask) string {
	if reason := records.OneLine(ask.Reason, reasonBytesMax); reason != "" {
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
		if clean := records.OneLine(name, inputBytesMax); clean != name {
			delete(out, name)
			out[clean] = v
		}
	}
	return out
}
