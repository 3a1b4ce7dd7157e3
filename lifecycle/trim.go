package lifecycle

import "pando.run/pando"

// OldIntents returns the oldest of a service's intents beyond the newest keep, at most `most`. It
// spares waiting asks and the intents of living instances.
func OldIntents(
	all []pando.Intent, keep, most int, living func(pando.InstanceID) bool,
) (out []pando.Key) {
	for n := range all[:max(0, len(all)-keep)] {
		i := &all[n]
		over := i.State.Ended() || i.State != pando.IntentAsked && !living(i.Instance)
		if over && len(out) < most {
			out = append(out, i.Key())
		}
	}
	return out
}

// OldDecisions returns the oldest of the decisions about a service beyond the newest keep, at most
// `most`. It spares the remembered ones, on which later decisions rest.
func OldDecisions(
	all []pando.Decision, remembered map[string]bool, keep, most int,
) (out []pando.Key) {
	most = min(most, len(all)-keep-len(remembered))
	for n := range all {
		if len(out) >= most {
			break
		}
		if !remembered[all[n].ID] {
			out = append(out, all[n].Key())
		}
	}
	return out
}

// OldRevisions returns the lowest of some ascending revision numbers beyond the highest keep, at
// most `most`. It spares revisions in use. Every agent keeps all stored revisions in memory.
func OldRevisions(all []int, used func(int) bool, keep, most int) (out []int) {
	for _, n := range all[:max(0, len(all)-keep)] {
		if len(out) < most && !used(n) {
			out = append(out, n)
		}
	}
	return out
}
