package billing

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

// Bounds of the bills in the store.
const (
	billOpsMax    = 500                    // records in one commit
	billRecords   = 20 * pando.ServicesMax // beyond it, a new tenant is not billed
	billAheadMax  = 2 * time.Hour          // of the clock of a host
	decisionsMost = 1 << 17                // that wait for a bill; beyond it, those of the tenant with the most are lost
	markKept      = 31 * 24 * time.Hour    // of a host that is gone
)

var billPeriods = []access.BillPeriod{access.BillByHour, access.BillByDay, access.BillByMonth}

// delivery is a batch with the mark that follows it.
type delivery struct {
	pando.WorkBatch
	mark pando.WorkMark
}

// bookAll returns the commit that adds deliveries to the bills with their marks, and the deliveries
// for the next commit. Each record is conditioned on its former one. So a batch counts once,
// although two leaders may have it. odd names the lines that are left out.
func bookAll(
	w *world.World, all []delivery, now time.Time,
) (t pando.Txn, rest []delivery, odd error) {
	records := map[pando.Key]access.Bill{}
	for n, d := range all {
		if n > 0 && len(records)+n+3*len(d.Lines) > billOpsMax {
			rest = all[n:]
			break
		}
		for _, l := range d.Lines {
			if err := billable(w, l, now); err != nil {
				odd = errors.Join(odd, fmt.Errorf("host %s: %w", d.mark.Host, err))
				continue
			}
			for _, by := range billPeriods {
				addTo(w, records, l, by, now)
			}
		}
		was := w.Marks[d.mark.Host]
		t.If = append(t.If, pando.Condition{Key: d.mark.Key(), Modified: was.Modified})
		t.Put = append(t.Put, d.mark)
	}
	for _, k := range slices.Sorted(maps.Keys(records)) {
		t.If = append(t.If, pando.Condition{Key: k, Modified: w.Bills[k].Modified})
		t.Put = append(t.Put, records[k])
	}
	return t, rest, odd
}

// billable returns nil if a line can be added to a bill. A host is not trusted with any text.
func billable(w *world.World, l pando.WorkLine, now time.Time) error {
	if err := errors.Join(pando.CheckLabel("tenant", string(l.Tenant)), l.Check()); err != nil {
		return err
	}
	if l.Hour.After(now.Add(billAheadMax)) {
		return fmt.Errorf("%w: work of %s is in the future", pando.ErrInvalid, l.Hour)
	}
	if b, _ := access.BillOf(l.Tenant, access.BillByMonth, l.Hour); len(w.Bills) >= billRecords &&
		w.Bills[b.Key()].Modified == 0 {
		return fmt.Errorf("%w: the store has %d bills", pando.ErrTooLarge, len(w.Bills))
	}
	return nil
}

// addTo adds a line to one of its records, unless that record is too old to be kept.
func addTo(w *world.World, records map[pando.Key]access.Bill, l pando.WorkLine,
	by access.BillPeriod, now time.Time) {
	b, part := access.BillOf(l.Tenant, by, l.Hour)
	if isOld(b, now) {
		return
	}
	k := b.Key()
	if _, known := records[k]; !known {
		if was, stored := w.Bills[k]; stored {
			b.Parts = maps.Clone(was.V.Parts)
		}
		if b.Parts == nil {
			b.Parts = map[int]pando.Work{}
		}
		records[k] = b
	}
	records[k].Parts[part] = records[k].Parts[part].Add(l.Work)
}

// isOld reports whether a record has been kept long enough.
func isOld(b access.Bill, now time.Time) bool {
	last := map[access.BillPeriod]int{access.BillByHour: 23, access.BillByDay: 31,
		access.BillByMonth: 12}[b.By]
	_, end := b.Span(last)
	return now.Sub(end) > b.By.Kept()
}

// oldBills returns records to remove: old bills, and marks of hosts that are gone.
func oldBills(w *world.World, now time.Time) (out []pando.Key) {
	for k, b := range w.Bills {
		if isOld(b.V, now) {
			out = append(out, k)
		}
	}
	for h, m := range w.Marks {
		_, member := w.Members[h]
		_, here := w.Hosts[h]
		if h != "" && !member && !here && now.Sub(m.V.At) > markKept {
			out = append(out, m.V.Key())
		}
	}
	slices.Sort(out)
	return out[:min(len(out), billOpsMax)]
}

// billLines returns the lines of a query. One line for each tenant comes from the finest records
// that reach back far enough.
func billLines(w *world.World, q access.BillQuery, now time.Time) []access.BillLine {
	by, since := cmp.Or(q.By, access.BillByMonth), q.Since
	if since.IsZero() {
		y, m, _ := now.UTC().Date()
		since = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	}
	for _, finer := range slices.Backward(billPeriods) {
		if q.By == "" && now.Sub(since) < finer.Kept() {
			by = finer
		}
	}
	sums := map[pando.Tenant]access.BillLine{}
	out := []access.BillLine{}
	for _, b := range w.Bills {
		if b.V.By != by || q.Tenant != "" && b.V.Tenant != q.Tenant {
			continue
		}
		for part, work := range b.V.Parts {
			from, to := b.V.Span(part)
			if !to.After(since) {
				continue
			}
			if to.After(now) {
				to = now
			}
			l := access.BillLine{Tenant: b.V.Tenant, From: from, To: to, Work: work}
			if q.By != "" {
				out = append(out, l)
				continue
			}
			sums[l.Tenant] = join(sums[l.Tenant], l)
		}
	}
	out = append(out, slices.Collect(maps.Values(sums))...)
	slices.SortFunc(out, func(a, b access.BillLine) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), a.From.Compare(b.From))
	})
	return out
}

// join returns one line for two of a tenant.
func join(a, b access.BillLine) access.BillLine {
	if a.Tenant == "" {
		return b
	}
	if b.From.Before(a.From) {
		a.From = b.From
	}
	if b.To.After(a.To) {
		a.To = b.To
	}
	a.Work = a.Add(b.Work)
	return a
}

// decided is a decision without a bill.
type decided struct {
	at     pando.StoreRevision
	tenant pando.Tenant
	hour   time.Time
}

// unbilled holds the decisions without a bill, by store revision. Every server has all decisions
// that its mark does not cover, so the next leader bills those that a leader has left. The lock of
// the mirror guards it.
type unbilled struct{ all []decided }

// take follows a change of the store.
func (u *unbilled) take(w *world.World, b pando.Batch, reset bool) {
	if reset {
		u.recount(w)
	}
	for _, d := range mirror.NewDecisions(w, b, reset) {
		u.note(d.V, d.Modified)
	}
	u.settle(w)
}

// note adds a new decision.
func (u *unbilled) note(d pando.Decision, at pando.StoreRevision) {
	if len(u.all) >= decisionsMost {
		u.all = share.Newest(u.all, decisionsMost/2,
			func(d decided) pando.Tenant { return d.tenant })
	}
	u.all = append(u.all,
		decided{at, d.Service.Tenant, d.At.UTC().Truncate(time.Hour)})
}

// recount takes the decisions of a store that was read as a whole.
func (u *unbilled) recount(w *world.World) {
	u.all = nil
	for _, d := range w.Decisions {
		if uint64(d.Modified) > w.Marks[""].V.Number {
			u.note(d.V, d.Modified)
		}
	}
	slices.SortFunc(u.all, func(a, b decided) int { return cmp.Compare(a.at, b.at) })
}

// settle drops the decisions that the bills have. The caller holds the lock of the mirror.
func (u *unbilled) settle(w *world.World) {
	upTo := pando.StoreRevision(w.Marks[""].V.Number)
	n := 0
	for n < len(u.all) && u.all[n].at <= upTo {
		n++
	}
	u.all = slices.Delete(u.all, 0, n)
}

// delivery returns the oldest decisions without a bill, of whole commits. They are at most as many
// as one commit can bill.
func (u *unbilled) delivery(now time.Time) []delivery {
	sums := map[decided]uint64{}
	mark := pando.WorkMark{At: now}
	for _, d := range u.all {
		if uint64(d.at) > mark.Number && len(sums) >= billOpsMax/8 {
			break
		}
		mark.Number = uint64(d.at)
		d.at = 0
		sums[d]++
	}
	if len(sums) == 0 {
		return nil
	}
	out := delivery{mark: mark}
	for d, n := range sums {
		out.Lines = append(out.Lines,
			pando.WorkLine{Tenant: d.tenant, Hour: d.hour, Work: pando.Work{Decisions: n}})
	}
	return []delivery{out}
}
