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

// Bounds of one service's history in the store, which all services share.
const (
	historyBytesAll = 128 << 20
	historyBytesMax = 512 << 10
	historyBytesMin = 16 << 10
)

// HistoryBytes returns the bytes that the intents and the decisions of one service may take, each.
func HistoryBytes(services int) int {
	return min(historyBytesMax, max(historyBytesMin, historyBytesAll/2/max(1, services)))
}

// Fits returns how many of the newest records fit into a number of bytes, at most `most`. all is
// ascending by age. One record always fits.
func Fits[T any](all []T, size func(*T) int, bytes, most int) int {
	for n := range min(most, len(all)) {
		if bytes -= size(&all[len(all)-1-n]); bytes < 0 {
			return max(1, n)
		}
	}
	return most
}

// recordBytes is about the size of a record without its texts.
const recordBytes = 300

// IntentBytes returns about the size of a stored intent.
func IntentBytes(i *pando.Intent) int {
	n := recordBytes + len(i.Reason) + 32*len(i.Inputs)
	for k := range i.History {
		n += 60 + len(i.History[k].Reason)
	}
	return n
}

// DecisionBytes returns about the size of a stored decision.
func DecisionBytes(d *pando.Decision) int {
	n := recordBytes + len(d.Reason) + 32*len(d.Inputs)
	for _, line := range d.Lines {
		n += 4 + len(line)
	}
	return n
}
