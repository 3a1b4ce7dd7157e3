package scale

import (
	"slices"
	"time"

	"pando.run/pando"
)

// Grant is a replicate that was granted.
type Grant struct {
	Intent   pando.IntentID
	By       pando.Asker
	Instance pando.InstanceID
	At       time.Time
}

// Grants returns the grants of the last second, oldest first. It reads them from the histories of
// the intents. Control's own starts need no permission and are no grants. A grant after now has the
// clock of an earlier leader. It is older than the change of leaders, which takes longer than a
// second.
func Grants(intents []pando.Intent, now time.Time) []Grant {
	var out []Grant
	for n := range intents {
		i := &intents[n]
		if i.Verb != pando.VerbReplicate || i.By.Kind == pando.AskerControl {
			continue
		}
		for _, t := range i.History {
			age := now.Sub(t.At)
			if t.State == pando.IntentGranted && age >= 0 && age <= time.Second {
				out = append(out, Grant{Intent: i.ID, By: i.By, Instance: i.Instance, At: t.At})
			}
		}
	}
	return MergeGrants(out)
}

// MergeGrants returns all grants of some lists, oldest first. Grants of one moment keep the order
// of the lists.
func MergeGrants(lists ...[]Grant) []Grant {
	out := slices.Concat(lists...)
	slices.SortStableFunc(out, func(a, b Grant) int { return a.At.Compare(b.At) })
	return out
}

// sameMoment returns the recent grant that an ask can share. A second ask of the same instance
// wants another instance.
func sameMoment(grants []Grant, by pando.Asker, now time.Time) (Grant, bool) {
	for _, g := range grants {
		if now.Sub(g.At) < Window && g.By != by && g.By.Kind == by.Kind {
			return g, true
		}
	}
	return Grant{}, false
}

func grantedSince(grants []Grant, t time.Time) int {
	n := 0
	for _, g := range grants {
		if g.At.After(t) {
			n++
		}
	}
	return n
}
