package function

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"pando.run/pando/demo/report"
)

// result holds the counts of a finished run.
type result struct {
	bill []billed
	// Packets that found no room in a unit's ring or in the next device, by the meters.
	ring, unsent uint64
	// Packets that found no room on the wire to the units or from them, by the kernel.
	wireIn, wireOut uint64
	expected, found map[string]bool
	planted         bool // the capture and the rule are the demo's own, so there must be alerts
}

// count reads the bill and compares the alerts. It runs after the receiver has ended.
func (p play) count(ctx context.Context, t *timeline, s *stage) (r result, err error) {
	bill, err := ask[invoice](ctx, s, "bill")
	if err != nil {
		return r, err
	}
	for _, o := range bill.Owed {
		r.bill = append(r.bill, o.billed)
		r.ring, r.unsent = r.ring+o.Lost, r.unsent+o.Unsent
	}
	r.planted = p.planted()
	if r.wireIn, err = s.dropped(ctx, "in", "eth0"); err != nil {
		return r, err
	}
	if r.wireOut, err = s.dropped(ctx, "unit", "out"); err != nil {
		return r, err
	}
	if r.found, err = s.found(ctx, []string{name}); err != nil {
		return r, err
	}
	r.expected, err = s.expected(ctx, p.chain(), "out.pcap")
	return r, err
}

// batch is the number of packets that a unit may have billed but not sent when it is killed.
const batch = 32

// inRing is the margin before and after the kill within which a lost packet may have been sent. The
// time that packets wait in the units of this run comes on top of it.
const inRing = 500 * time.Millisecond

// checks compares the counts with the packets that were sent. The caller holds the timeline's lock.
func (r result) checks(t *timeline) []report.Check {
	out := t.offered[len(t.offered)-1]
	in := t.final
	missing := int64(out.Sent) - int64(in.Packets)
	within, stray := uint64(0), uint64(0)
	for _, l := range in.Losses {
		if t.inKill(l) {
			within += l.Packets
		} else {
			stray += l.Packets
		}
	}
	grew, most, left := t.grown()
	first, last := r.packets("policer"), r.packets("ids")
	unsent := int64(last) - int64(in.Packets) - int64(r.unsent+r.wireOut)
	same := len(r.expected) == len(r.found)
	for a := range r.expected {
		same = same && r.found[a]
	}
	return []report.Check{
		{Name: "the generator lost none",
			Detail: fmt.Sprintf("%d of %d sent; %d later than 1 ms, the latest %s",
				out.Sent, out.Packets, out.Late, micros(out.LatestMicros*1000)),
			Held: out.NotTaken == 0 && out.Sent > 0},
		{Name: "the receiver lost none", Detail: fmt.Sprintf("%d came, %d too fast for it, %d twice",
			in.Packets, in.Overrun, in.Twice), Held: in.Overrun == 0 && in.Twice == 0},
		{Name: "units came and went with the load", Held: most > grew && most > left,
			Detail: fmt.Sprintf("%d → %d → %d units", grew, most, left)},
		{Name: "a unit was killed, others took its place", Held: !t.dead.over.IsZero(),
			Detail: t.outage()},
		{Name: "packets in = packets out + those lost in the kill",
			Held: missing == int64(within+stray) && stray <= r.counted(),
			Detail: fmt.Sprintf("%d = %d + %d",
				out.Sent, in.Packets, within) + elsewhere(missing-int64(within), r.counted())},
		{Name: "the bill = packets processed", Held: unsent >= 0 && unsent <= batch && first == last,
			Detail: fmt.Sprintf("%d = %d that left the units + %d in the batch of the kill (at most %d)",
				last, int64(last)-unsent, unsent, batch)},
		{Name: "alerts found = alerts expected of what came out",
			Held:   same && (len(r.expected) > 0 || !r.planted),
			Detail: fmt.Sprintf("%d = %d, as (flow, rule)", len(r.found), len(r.expected))},
	}
}

// counted returns the number of packets that were dropped because a queue was full. Queues overflow
// when the machine is too busy to run the units or the kernel's own threads.
func (r result) counted() uint64 { return r.ring + r.unsent + r.wireIn + r.wireOut }

// elsewhere describes missing packets that the kill did not lose. counted is the number of recorded
// drops.
func elsewhere(packets int64, counted uint64) string {
	switch {
	case packets == 0:
		return ""
	case packets > 0 && uint64(packets) <= counted:
		return fmt.Sprintf(" + %d for which queues that nobody had the time to empty had no room",
			packets)
	}
	return fmt.Sprintf(", and %d are missing elsewhere (%d were counted as dropped)", packets, counted)
}

// packets returns the number of packets billed for one function.
func (r result) packets(function string) (sum uint64) {
	for _, b := range r.bill {
		if b.Function == function {
			sum += b.Packets
		}
	}
	return sum
}

// inKill reports whether packets were lost in the kill. Packets that waited in the unit's ring were
// sent before the kill.
func (t *timeline) inKill(l loss) bool {
	from, to := time.Unix(0, int64(l.FromNanos)), time.Unix(0, int64(l.ToNanos))
	wait := inRing
	for _, r := range t.arrived {
		wait = max(wait, inRing+time.Duration(r.LatencyNanos[3]))
	}
	return !t.dead.at.IsZero() && from.Before(t.dead.at.Add(inRing)) && to.After(t.dead.at.Add(-wait))
}

// outage describes the packets that were lost in the kill. The caller holds the lock.
func (t *timeline) outage() string {
	if t.dead.over.IsZero() {
		return "none did"
	}
	lost, from, to := uint64(0), uint64(math.MaxUint64), uint64(0)
	for _, l := range t.final.Losses {
		if t.inKill(l) {
			lost, from, to = lost+l.Packets, min(from, l.FromNanos), max(to, l.ToNanos)
		}
	}
	if lost == 0 {
		return "no packet was lost"
	}
	return fmt.Sprintf("%d packets, sent within %s", lost, micros(to-from))
}

// page returns the report of a run.
func (r result) page(p play, t *timeline) report.Page {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.offered[len(t.offered)-1]
	checks := r.checks(t)
	page := report.Page{
		Title: "Network functions that come and go",
		Lead: "A capture goes through a policer and an IDS, both WebAssembly, in a group of units: one " +
			"process each, behind walls, on real " +
			"devices. Units come and go with the load, and flows move between them with their states. " +
			"Half way through, a unit is killed with kill -9. Every packet carries its number, so what is " +
			"missing is known one by one.",
		Charts: t.charts(),
		Checks: checks,
		Lives:  t.lives(),
		Tables: []report.Table{r.invoice(), r.beside(t)},
		Facts:  p.manifest(out),
	}
	if !t.dead.at.IsZero() {
		page.Marks = []report.Mark{{Seconds: t.dead.at.Sub(t.begin).Seconds(), Name: "killed"}}
	}
	l := t.final.LatencyNanos
	page.Figures = []report.Fact{
		{Name: "packets through the functions", Value: fmt.Sprint(t.final.Packets)},
		{Name: "latency p50 / p99", Value: micros(l[0]) + " / " + micros(l[3])},
		{Name: "lost in the kill", Value: fmt.Sprint(int64(out.Sent) - int64(t.final.Packets))},
		{Name: "alerts", Value: fmt.Sprint(len(r.found))},
	}
	page.Decisions = t.events
	return page
}

// charts returns the load, the units and the latency over time. The caller holds the lock.
func (t *timeline) charts() []report.Chart {
	lines := map[string][]report.Point{}
	add := func(line string, at, value float64) {
		lines[line] = append(lines[line], report.Point{Seconds: at, Value: value})
	}
	for i, o := range t.offered[:len(t.offered)-1] { // the last interval is shorter
		add("offered", o.Seconds, t.megabits(i))
	}
	shift, until := t.shift(), t.offered[len(t.offered)-1].Seconds+shrinkWait.Seconds()
	for _, r := range t.arrived {
		at := float64(r.AtMillis)/1e3 - shift
		if at < 0 || at > until {
			continue
		}
		add("came out", at, float64(r.Bytes)*8e-6/0.1)
		if r.Packets > 0 {
			add("p50", at, float64(r.LatencyNanos[0])/1e6)
			add("p99", at, float64(r.LatencyNanos[3])/1e6)
		}
	}
	for _, s := range t.samples {
		if at := s.at.Sub(t.begin).Seconds(); at >= 0 && at <= until {
			add("running", at, float64(s.active))
			add("taking packets", at, float64(s.accepting))
		}
	}
	return []report.Chart{
		{Title: "Load, Mbit/s", Lines: []report.Line{{Name: "offered", Area: true,
			Points: lines["offered"]}, {Name: "came out", Points: lines["came out"]}}},
		{Title: "Units", Step: true, Lines: []report.Line{{Name: "running", Points: lines["running"]},
			{Name: "taking packets", Area: true, Points: lines["taking packets"]}}},
		{Title: "Latency from the sender's stamp to the receiver's kernel, ms", Log: true,
			Lines: []report.Line{{Name: "p50", Points: lines["p50"]}, {Name: "p99", Points: lines["p99"]}}},
	}
}

// shift returns how many seconds the receiver began before the sender. The caller holds the lock.
func (t *timeline) shift() float64 { return t.begin.Sub(t.received).Seconds() }

// lives returns the observed lives of the units. The caller holds the lock.
func (t *timeline) lives() report.Lives {
	out := report.Lives{Title: "Lives of the units", Serving: "serving"}
	until := t.samples[len(t.samples)-1].at.Sub(t.begin).Seconds()
	for _, key := range t.order {
		l := t.seen[key]
		end := until
		if !l.end.IsZero() {
			end = min(end, l.end.Sub(t.begin).Seconds())
		}
		from := max(0, l.begin.Sub(t.begin).Seconds())
		out.Rows = append(out.Rows, report.Life{
			Name: l.name, Spans: []report.Span{{Kind: "serving", From: from, To: max(from, end)}},
		})
	}
	return out
}

// invoice returns the bill as a table.
func (r result) invoice() report.Table {
	table := report.Table{Title: "The bill", Numbers: true, Note: "Per packet and per fuel (about " +
		"one per instruction), never per time. Bytes are those of the frames, stamps included.",
		Head: []string{"tenant / function", "packets", "bytes", "fuel", "fuel per packet", "trapped"}}
	for _, b := range r.bill {
		table.Rows = append(table.Rows, []string{b.Tenant + " / " + b.Function, fmt.Sprint(b.Packets),
			fmt.Sprint(b.Bytes), fmt.Sprint(b.Fuel),
			fmt.Sprint(b.Fuel / max(1, b.Packets)), fmt.Sprint(b.Trapped)})
	}
	return table
}

// beside compares this run with the paper's figures. The caller holds the lock.
func (r result) beside(t *timeline) report.Table {
	l := t.final.LatencyNanos
	return report.Table{
		Title: "Beside the paper",
		Note: "SNF was measured on 30 servers with units of 1 Gbit/s; this is one machine that sends, " +
			"runs the units and receives on the same processors. " +
			"The figures that can be compared are in bench/README.md.",
		Head: []string{"measure", "this run", "the paper"},
		Rows: [][]string{
			{"latency p50 / p75 / p90 / p99", fmt.Sprintf("%s / %s / %s / %s",
				micros(l[0]), micros(l[1]), micros(l[2]), micros(l[3])), "p75 14 µs (§9.1)"},
			{"lost in the kill of a unit", t.outage(),
				"140 µs of state transfer, detection not included; FTMB 25.7 ms, CHC 3.2 ms (§9.4)"},
		},
	}
}

// manifest lists the parameters of the run.
func (p play) manifest(s sent) []report.Fact {
	return append([]report.Fact{
		{Name: "capture", Value: p.capturedBy()}, {Name: "rules", Value: filepath.Base(p.rules)},
		{Name: "replay", Value: fmt.Sprintf("%d copies %.1f ms apart, speed %g ×, %.1f s, a real run",
			s.Copies, s.StaggerMillis, s.Speed, s.Seconds)},
		{Name: "chain",
			Value: "policer → ids, " + units + " units of " + capacity + "bit/s, one process each"},
	}, report.Machine()...)
}

// planted reports whether the capture contains the content that the rules look for.
func (p play) planted() bool { return p.made && filepath.Base(p.rules) == ownFile }

func (p play) capturedBy() string {
	if p.made {
		return fmt.Sprintf("made by pando fn generate: %d flows in %g s, seed 1", p.flows, p.seconds)
	}
	return filepath.Base(p.capture)
}
