package billing

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

var billNow = time.Date(2026, 11, 28, 9, 30, 0, 0, time.UTC)

// workOf is a delivery of a host with one line.
func workOf(h pando.HostName, number uint64, t pando.Tenant, hour time.Time) delivery {
	return delivery{
		pando.WorkBatch{Lines: []pando.WorkLine{{Tenant: t, Hour: hour,
			Work: pando.Work{BytesIn: 100, InstanceSeconds: 60}}}},
		pando.WorkMark{Host: h, Journal: "j", Number: number, At: billNow},
	}
}

// enter commits deliveries to a world, as the store does, and returns the errors of their lines.
func enter(t *testing.T, w *world.World, at pando.StoreRevision, all ...delivery) error {
	t.Helper()
	txn, rest, odd := bookAll(w, all, billNow)
	if len(rest) > 0 {
		t.Fatalf("%d deliveries are left", len(rest))
	}
	w.Committed(txn, at)
	return odd
}

func TestABillAddsUp(t *testing.T) {
	w := world.New()
	hour := billNow.Truncate(time.Hour)
	for n, d := range []delivery{
		workOf("h1", 1, "acme", hour), workOf("h2", 1, "acme", hour), workOf("h1", 2, "beta", hour),
		workOf("h1", 3, "acme", hour.Add(-time.Hour)),       // in the same day
		workOf("h1", 4, "acme", hour.Add(-26*time.Hour)),    // in another day
		workOf("h2", 2, "acme", hour.Add(-10*24*time.Hour)), // its hours are not kept any more
	} {
		if err := enter(t, w, pando.StoreRevision(n+1), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		q     pando.BillQuery
		lines int
		bytes uint64 // of the first line
	}{
		{pando.BillQuery{}, 2, 500},
		{pando.BillQuery{Tenant: "beta"}, 1, 100},
		{pando.BillQuery{Tenant: "gone"}, 0, 0},
		{pando.BillQuery{Since: billNow.Add(-2 * time.Hour)}, 2, 300},
		{pando.BillQuery{Since: time.Unix(0, 0)}, 2, 500},
		{pando.BillQuery{Tenant: "acme", By: pando.BillByHour}, 3, 100},
		{pando.BillQuery{Tenant: "acme", By: pando.BillByDay}, 3, 100},
		{pando.BillQuery{Tenant: "acme", By: pando.BillByMonth}, 1, 500},
	} {
		got := billLines(w, c.q, billNow)
		if len(got) != c.lines || c.lines > 0 && got[0].BytesIn != c.bytes {
			t.Errorf("%+v: %+v, want %d lines and %d bytes", c.q, got, c.lines, c.bytes)
		}
		for _, l := range got {
			if l.To.After(billNow) || !l.From.Before(l.To) {
				t.Errorf("%+v: from %s to %s", c.q, l.From, l.To)
			}
		}
	}
}

// Two leaders may have the same batch. The store takes one of the two commits, because each is
// conditioned on the mark.
func TestABatchHasOneCommit(t *testing.T) {
	w := world.New()
	d := workOf("h1", 1, "acme", billNow.Truncate(time.Hour))
	first, _, _ := bookAll(w, []delivery{d}, billNow)
	second, _, _ := bookAll(w, []delivery{d}, billNow)
	w.Committed(first, 7)
	for _, c := range second.If {
		if c.Key == d.mark.Key() && c.Modified == w.Marks["h1"].Modified {
			t.Error("the second leader may bill the batch again")
		}
	}
	if len(first.If) != len(first.Put) {
		t.Errorf("%d conditions for %d records", len(first.If), len(first.Put))
	}
}

// A host cannot bill the future, another name or less than nothing. Its other lines count.
func TestOddLinesAreLeftOut(t *testing.T) {
	hour := billNow.Truncate(time.Hour)
	for name, l := range map[string]pando.WorkLine{
		"the future":  {Tenant: "acme", Hour: hour.Add(9 * time.Hour)},
		"a path":      {Tenant: "a/../b", Hour: hour},
		"no name":     {Hour: hour},
		"a refund":    {Tenant: "acme", Hour: hour, Work: pando.Work{CPUSeconds: -1}},
		"two refunds": {Tenant: "acme", Hour: hour, Work: pando.Work{InstanceSeconds: -1}},
	} {
		w, d := world.New(), workOf("h1", 1, "acme", hour)
		d.Lines = append(d.Lines, l)
		if err := enter(t, w, 1, d); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if got := billLines(w, pando.BillQuery{}, billNow); len(got) != 1 || got[0].BytesIn != 100 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// One commit has a bounded number of records, and old ones go.
func TestBillsAreBounded(t *testing.T) {
	w := world.New()
	hour := billNow.Truncate(time.Hour)
	var all []delivery
	for n := range 1000 {
		all = append(all, workOf(pando.HostName(fmt.Sprint("h", n)), 1,
			pando.Tenant(fmt.Sprint("t", n)), hour))
	}
	commits := 0
	for at := pando.StoreRevision(1); len(all) > 0; at++ {
		txn, rest, odd := bookAll(w, all, billNow)
		if odd != nil || len(txn.Put) > billOpsMax || len(rest) >= len(all) {
			t.Fatalf("%d records leave %d of %d: %v", len(txn.Put), len(rest), len(all), odd)
		}
		w.Committed(txn, at)
		all = rest
		commits++
	}
	if got := billLines(w, pando.BillQuery{}, billNow); len(got) != 1000 || commits > 10 {
		t.Errorf("%d lines after %d commits", len(got), commits)
	}
	for _, c := range []struct {
		after time.Duration
		gone  int
	}{{0, 0}, {24 * time.Hour, 0}, {5 * 24 * time.Hour, 500}, {40 * 24 * time.Hour, 500}} {
		if got := len(oldBills(w, billNow.Add(c.after))); got != c.gone {
			t.Errorf("after %s %d records go, want %d", c.after, got, c.gone)
		}
	}
}

// Decisions of one tenant beyond the bound push out its own, and none of another tenant.
func TestDecisionsToBillHaveAShareForEachTenant(t *testing.T) {
	n := &unbilled{}
	note := func(of pando.Tenant, at int) {
		n.note(pando.Decision{At: billNow, Service: pando.ServiceKey{Tenant: of, Name: "web"}},
			pando.StoreRevision(at))
	}
	note("bank", 1)
	for at := range decisionsMost {
		note("acme", at+2)
	}
	if n.all[0].tenant != "bank" {
		t.Error("a flood of acme pushed out a decision of bank")
	}
	if got := len(n.all); got != decisionsMost/2+1 {
		t.Errorf("%d decisions wait", got)
	}
	if !slices.IsSortedFunc(n.all, func(a, b decided) int { return cmp.Compare(a.at, b.at) }) {
		t.Error("the decisions are out of order")
	}
}

// The next leader bills the decisions that the mark does not have, in commits of bounded size.
func TestDecisionsAreBilledOnce(t *testing.T) {
	w, n := world.New(), &unbilled{}
	for i := range 1000 {
		d := pando.Decision{ID: fmt.Sprint(i), At: billNow,
			Service: pando.ServiceKey{Tenant: pando.Tenant(fmt.Sprint("t", i%300)), Name: "web"}}
		at := pando.StoreRevision(i/2 + 1) // two decisions in each commit
		w.Committed(pando.Txn{Put: []pando.Stored{d}}, at)
		n.note(d, at)
	}
	for at := pando.StoreRevision(2000); ; at++ {
		if at%2 == 0 { // another server leads: it has read the store as a whole
			n = &unbilled{}
			n.recount(w)
		}
		all := n.delivery(billNow)
		if all == nil {
			break
		}
		if err := enter(t, w, at, all...); err != nil {
			t.Fatal(err)
		}
		n.settle(w)
	}
	sum := uint64(0)
	for _, l := range billLines(w, pando.BillQuery{}, billNow) {
		sum += l.Decisions
	}
	if sum != 1000 || len(n.all) > 0 {
		t.Errorf("%d of 1000 decisions are billed, and %d wait", sum, len(n.all))
	}
}
