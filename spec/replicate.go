package spec

import (
	"fmt"
	"strings"

	"pando.run/pando"
)

var replicateFields = []field{
	{name: "from", doc: "snapshot: a new instance continues a snapshot of its revision on its " +
		"host, in place of the program's start. Each host takes the snapshot itself, when its first " +
		"instance of the revision is ready.",
		def: "the program's start", example: "snapshot", kind: enumKind(string(pando.FromSnapshot)),
		set: func(s *pando.Spec, v any) { s.Replicate.From = pando.ReplicateFrom(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Replicate.From) }},
	{name: "plain", doc: "Do not encrypt those snapshots. A start then needs no answer of the server. " +
		"Else they are encrypted with the key of the cluster.",
		def: "false", example: "true", kind: boolKind,
		set: func(s *pando.Spec, v any) { s.Replicate.Plain = v.(bool) },
		get: func(s pando.Spec) any { return s.Replicate.Plain }},
}

// replicateConflicts returns the keys of a spec that contradict `replicate`. A copy has everything
// that the first instance read, so that must fit every instance for ever.
func replicateConflicts(s pando.Spec) (out []conflict) {
	if !s.Seeded() {
		return nil
	}
	add := func(is bool, format string, about ...any) {
		if is {
			out = append(out, conflict{"replicate.from", fmt.Sprintf(format, about...)})
		}
	}
	uid, _, _ := strings.Cut(s.User, ":")
	add(s.Ordinals(), "each instance has volumes of its own, and a copy has the files of the first: "+
		"drop replicate, or make the volumes shared")
	add(uid == "0" || uid == "root", "a program of root cannot be stored: name another user")
	add(len(s.StoredSecrets)+len(s.Secrets) > 0, "a copy has the secrets that the first instance "+
		"read, also after a change: drop replicate or the secrets")
	add(len(s.Configs) > 0, "a copy has the configs that the first instance read, also after a "+
		"change: drop replicate or the configs")
	return out
}

// replicate checks the beginning of new instances.
func (c *checks) replicate(s pando.Spec) {
	word(c, "replicate.from", s.Replicate.From, "", pando.FromSnapshot)
	c.that(s.Seeded() || !s.Replicate.Plain, "replicate.plain: no snapshots are taken: write "+
		"`from: snapshot` beside it")
	for _, why := range replicateConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}
