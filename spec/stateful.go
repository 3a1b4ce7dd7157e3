package spec

import (
	"fmt"

	"pando.run/pando"
)

var hookFields = []field{
	{name: "bootstrap", doc: "Command that starts the first ordinal of all, in place of `command`. " +
		"After a crash of all, the ordinal with the newest position starts with it.",
		def: "`command`", example: `"./start --new-cluster"`, kind: commandKind,
		set: func(s *pando.Spec, v any) { s.Hooks.Bootstrap = v.([]string) },
		get: func(s pando.Spec) any { return s.Hooks.Bootstrap }},
	{name: "recover", doc: "Command that prints the position of an ordinal in its last line: " +
		"UUID:NUMBER, and -1 for an unknown number. It runs before the program, once no ordinal serves.",
		def: "ordinals start in order, without an election", example: `"./position"`, kind: commandKind,
		set: func(s *pando.Spec, v any) { s.Hooks.Recover = v.([]string) },
		get: func(s pando.Spec) any { return s.Hooks.Recover }},
	{name: "joined", doc: "Command that exits with 0 once an ordinal has the data of the others. It " +
		"is ready no sooner.",
		def: "health.ready alone", example: `"./synced"`, kind: commandKind,
		set: func(s *pando.Spec, v any) { s.Hooks.Joined = v.([]string) },
		get: func(s pando.Spec) any { return s.Hooks.Joined }},
	{name: "quorum", doc: "Positions that are enough for a bootstrap while the hosts of the others " +
		"are away. Right if any so many ordinals have every acknowledged write among them.",
		def: "all", example: "2", kind: integerKind(1, pando.OrdinalsMax),
		set: func(s *pando.Spec, v any) { s.Hooks.Quorum = v.(int) },
		get: func(s pando.Spec) any { return s.Hooks.Quorum }},
	{name: "timeout", doc: "Time for one run of `recover` or `joined`.", def: "30s", example: "10s",
		kind: durationKind,
		set:  func(s *pando.Spec, v any) { s.Hooks.SecondsMax = v.(float64) },
		get:  func(s pando.Spec) any { return duration(s.Hooks.SecondsMax) }},
}

// statefulConflicts returns the keys of a spec that contradict its kind.
func statefulConflicts(s pando.Spec) (out []conflict) {
	add := func(path, format string, args ...any) {
		out = append(out, conflict{path, fmt.Sprintf(format, args...)})
	}
	h := s.Hooks
	if !s.Stateful() {
		return out
	}
	if !s.Ordinals() {
		add("kind", "each ordinal of a stateful service keeps its data in a volume of its own: add "+
			"volumes: [\"data:/var/lib/%s\"]", s.Name)
	}
	if s.Scale.Max > max(1, s.Scale.Min) {
		add("scale.max", "a stateful service has a fixed number of ordinals: drop max, or write max: %d",
			max(1, s.Scale.Min))
	}
	if s.Scale.Min > pando.OrdinalsMax {
		add("scale.min", "a stateful service has at most %d ordinals", pando.OrdinalsMax)
	}
	if s.Scale.Zero {
		add("scale.min", "a stateful service has at least one ordinal")
	}
	if len(h.Recover) > 0 && len(h.Bootstrap) == 0 {
		add("hooks.recover", "chooses the ordinal that bootstraps: add hooks.bootstrap")
	}
	if h.Quorum > 0 && len(h.Recover) == 0 {
		add("hooks.quorum", "counts positions: add hooks.recover")
	}
	if least := max(1, s.Scale.Min); h.Quorum > least {
		add("hooks.quorum", "is more than the %d ordinals of scale.min", least)
	}
	return out
}

// stateful checks the kind of a service and its hooks.
func (c *checks) stateful(s pando.Spec) {
	word(c, "kind", s.Kind, "", pando.KindJob, pando.Stateful, pando.KindVM)
	for where, argv := range map[string][]string{"hooks.bootstrap": s.Hooks.Bootstrap,
		"hooks.recover": s.Hooks.Recover, "hooks.joined": s.Hooks.Joined} {
		c.that(len(argv) == 0 || argv[0] != "", "%s: is empty", where)
		for i, text := range argv {
			c.text(fmt.Sprintf("%s[%d]", where, i), text)
		}
	}
	c.seconds("hooks.seconds_max", s.Hooks.SecondsMax)
	c.that(s.Hooks.Quorum >= 0, "hooks.quorum: is negative")
	for _, why := range statefulConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}
