package spec

import (
	"maps"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

var balanceFields = []field{
	{name: "by", doc: "hash: by weight alone. round-robin: in turn. haven: the least score of those " +
		"with the fewest flows since the last scores. score: the better of two by score and live " +
		"flows. least-flows: the fewer live flows of two. client: by the client's address.",
		def: "hash", example: "score", kind: enumKind(balanceWords()...),
		set: func(s *pando.Spec, v any) { s.Balance.By = pando.BalanceBy(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Balance.By) }},
	{name: "at", doc: "packet: the first packet of a flow gets its instance. connect: a socket of " +
		"an instance or a host also gets it, as its peer; its packets pass no table.",
		def: "packet", example: "connect", kind: enumKind(balancePlaces()...),
		set: func(s *pando.Spec, v any) { s.Balance.At = pando.BalanceAt(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Balance.At) }},
	{name: "weights", doc: "Weight of each share in the score: cpu, memory, bandwidth, " +
		"pressure, stall, loss, rtt, queue. " +
		"A resource that is not named has the weight 0.",
		def: "1 each", example: "{cpu: 2, memory: 1}", kind: weightsKind,
		set: func(s *pando.Spec, v any) { s.Balance.Weights = v.(pando.Weights) },
		get: func(s pando.Spec) any { return weightTexts(s.Balance.Weights) }},
	{name: "every", doc: "Time between two measurements, 50ms to 5s.", def: "100ms",
		example: "500ms", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Balance.EverySeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Balance.EverySeconds) }},
}

func balanceWords() (out []string) {
	for _, by := range pando.BalanceKinds {
		out = append(out, string(by))
	}
	return out
}

func balancePlaces() (out []string) {
	for _, at := range pando.BalancePlaces {
		out = append(out, string(at))
	}
	return out
}

// weightFields are the resources of a score.
var weightFields = map[string]func(*pando.Weights) *float64{
	"bandwidth": func(w *pando.Weights) *float64 { return &w.Bandwidth },
	"cpu":       func(w *pando.Weights) *float64 { return &w.CPU },
	"memory":    func(w *pando.Weights) *float64 { return &w.Memory },
	"pressure":  func(w *pando.Weights) *float64 { return &w.Pressure },
	"stall":     func(w *pando.Weights) *float64 { return &w.Stall },
	"loss":      func(w *pando.Weights) *float64 { return &w.Loss },
	"rtt":       func(w *pando.Weights) *float64 { return &w.RTT },
	"queue":     func(w *pando.Weights) *float64 { return &w.Queue },
}

var weightsKind = makeWeightsKind()

func makeWeightsKind() kind {
	schema := map[string]any{}
	for name := range weightFields {
		schema[name] = numberKind.schema
	}
	return kind{
		schema: map[string]any{"type": "object", "additionalProperties": false, "minProperties": 1,
			"properties": schema},
		read: func(r *reader, n ast.Node, path string, take func(any)) {
			var w pando.Weights
			var table []field
			for _, name := range slices.Sorted(maps.Keys(weightFields)) {
				table = append(table, field{name: name, doc: "its weight", kind: numberKind,
					set: func(_ *pando.Spec, v any) { *weightFields[name](&w) = v.(float64) }})
			}
			if !r.members(n, path, "a map such as {cpu: 1, memory: 1}", table) {
				return
			}
			if w == (pando.Weights{}) {
				r.at(n, path, "every weight is 0: raise one, or drop weights")
				return
			}
			take(w)
		},
	}
}

// weightTexts returns the weights that are not 0, or nil if there is none.
func weightTexts(w pando.Weights) map[string]float64 {
	out := map[string]float64{}
	for name, of := range weightFields {
		if v := *of(&w); v > 0 {
			out[name] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
