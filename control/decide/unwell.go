package decide

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// UnwellMax is how long a drained instance counts against the next one if no instance replaces it.
const UnwellMax = time.Minute

// replaceUnwell drains the instances that do not answer, by the reports of their hosts, and starts
// others in their place. Control decides, and not each host: an instance that is alone on its host
// is not the last of its service, and a quarter of the service is no quarter of each host's.
func (d *Draft) replaceUnwell() {
	if d.svc.Removing {
		return
	}
	for _, i := range slices.Clone(d.reachable()) {
		if i.Unwell == "" || !i.Phase.TakesFlows() || d.full() {
			continue
		}
		n := d.count()
		total := max(n.Capacity, d.bounds().Least, d.svc.Rolling)
		out, next := d.replacedLately()
		out = min(out, total-n.InRotation)
		if lifecycle.MayEnd(out, n.InRotation, total) {
			d.replaceOne(i)
			continue
		}
		why := "it is the last in rotation"
		if n.InRotation > 1 {
			why = fmt.Sprintf("%d of %d are out of rotation", out, total)
			d.lookAgain(next)
		}
		d.spare(i, why)
	}
}

// replaceOne drains an instance, and starts another one outside of a rollout. An instance of a
// stateful service starts by its own order.
func (d *Draft) replaceOne(i pando.Instance) {
	n := d.count().Capacity
	d.record(pando.DecidedUnhealthy, i.ID, i.Unwell+"; it is drained and replaced",
		map[string]float64{"revision": float64(i.Revision), replaced: 1})
	i.Walk = true // without an intent to halt: it does not answer, and its drain has a limit
	d.putInstance(i.Become(pando.PhaseDraining, d.now, i.Unwell))
	if spec, _ := d.spec(d.serving()); d.rolling() || spec.Ordinals() || d.stopFirst() {
		return // the rules of a rollout, of an ordinal and of a single writer start the next one
	}
	if d.count().Capacity < n && d.mayStart(d.serving(), n) {
		d.start(d.serving(), fmt.Sprintf("in place of %s, which does not answer", i.ID))
	}
}

// replaced is the input of a decision by which control has drained an instance that does not answer.
const replaced = "replaced"

// replacedLately returns how many instances were drained within UnwellMax because they do not answer, and
// when the first of them counts no more.
func (d *Draft) replacedLately() (n int, next time.Time) {
	count := func(v pando.Decision) {
		if v.Kind != pando.DecidedUnhealthy || v.Inputs[replaced] == 0 {
			return
		}
		at, _ := d.w.SinceOf(v.Key())
		if at.IsZero() || d.w.CreatedOf(v.Key()) == 0 {
			at = v.At // of this decision, or the world has no clock
		}
		if end := at.Add(UnwellMax); d.now.Before(end) {
			if n++; next.IsZero() || end.Before(next) {
				next = end
			}
		}
	}
	for _, v := range d.decisions {
		count(v)
	}
	for _, v := range d.puts {
		if v, ok := v.(pando.Decision); ok && d.w.CreatedOf(v.Key()) == 0 {
			count(v)
		}
	}
	return n, next
}

// spare records once why an instance stays that does not answer.
func (d *Draft) spare(i pando.Instance, why string) {
	reason := i.Unwell + "; it stays, for " + why
	if !slices.ContainsFunc(d.decisions, func(v pando.Decision) bool {
		return v.Kind == pando.DecidedUnhealthy && v.Instance == i.ID && v.By == Self
	}) {
		d.record(pando.DecidedUnhealthy, i.ID, reason,
			map[string]float64{"revision": float64(i.Revision)})
	}
}
