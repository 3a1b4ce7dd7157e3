package website

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
)

// totals is the sum of the load generator's reports.
type totals struct {
	reports                           []load.Report
	offered, answered, failed, broken int
	why                               map[string]int // failures by reason
	// Timeouts and broken connections by the instance of the connection.
	unanswered, brokenAt map[string]int
	// Its latencies cover the whole run once Final is set.
	last load.Report
}

// newMax is the number of timeouts on new connections that the death of a host excuses: the host
// accepted them and died before its first answer there.
const newMax = 16

func (t *totals) add(r load.Report) {
	t.offered, t.answered, t.broken = t.offered+r.Offered, t.answered+r.Answered, t.broken+r.Broken
	for _, n := range r.Failed {
		t.failed += n
	}
	sum(&t.why, r.Failed)
	sum(&t.unanswered, r.Unanswered)
	sum(&t.brokenAt, r.BrokenAt)
	t.last = r
	if !r.Final { // the last interval is shorter
		t.reports = append(t.reports, r)
	}
}

// sum adds counts to those so far.
func sum(all *map[string]int, more map[string]int) {
	if *all == nil {
		*all = map[string]int{}
	}
	for of, n := range more {
		(*all)[of] += n
	}
}

// rate returns the requests per second of one report.
func (t *totals) rate(i int) (offered, answered float64) {
	before := int64(0)
	if i > 0 {
		before = t.reports[i-1].AtMillis
	}
	r := t.reports[i]
	seconds := float64(max(1, r.AtMillis-before)) / 1e3
	return float64(r.Offered) / seconds, float64(r.Answered) / seconds
}

// charts returns the charts of the load and of its latency.
func (t *totals) charts() (rates, latency report.Chart) {
	lines := map[string][]report.Point{}
	for i, r := range t.reports {
		at := float64(r.AtMillis) / 1e3
		offered, answered := t.rate(i)
		lines["offered"] = append(lines["offered"], report.Point{Seconds: at, Value: offered})
		lines["answered"] = append(lines["answered"], report.Point{Seconds: at, Value: answered})
		if r.Answered > 0 {
			lines["p50"] = append(lines["p50"],
				report.Point{Seconds: at, Value: float64(r.LatencyMicros[0]) / 1e3})
			lines["p99"] = append(lines["p99"],
				report.Point{Seconds: at, Value: float64(r.LatencyMicros[1]) / 1e3})
		}
	}
	rates = report.Chart{Title: "Load, requests per second", Lines: []report.Line{
		{Name: "offered", Area: true, Points: lines["offered"]},
		{Name: "answered", Points: lines["answered"]},
	}}
	latency = report.Chart{Title: "Latency from the moment at which a request was due, ms",
		Log: true, Lines: []report.Line{
			{Name: "p50", Points: lines["p50"]}, {Name: "p99", Points: lines["p99"]},
		}}
	return rates, latency
}

// checks returns the conditions that the load itself has to meet. dead are the instances of a
// killed host, and none if no host was killed: only their connections may fail. Most of these
// requests time out. A host without an entry of the flow refuses it once all living hosts have
// answered that they do not have it.
func (t *totals) checks(host string, dead map[string]bool) []report.Check {
	timeouts, broken, most := t.unanswered[""], 0, newMax
	for by := range dead {
		timeouts += t.unanswered[by]
		broken += t.brokenAt[by]
	}
	fail := report.Check{Name: "no request failed", Held: t.failed == 0}
	whole := report.Check{Name: "no established connection was broken",
		Held: t.broken == broken, Detail: fmt.Sprint(t.broken)}
	if dead != nil {
		fail = report.Check{Name: "requests failed only on connections to the killed " + host,
			Held: t.failed == timeouts+broken && t.unanswered[""] <= most}
		whole.Name = "no other established connection was broken"
		whole.Detail = fmt.Sprint(t.broken - broken)
	}
	fail.Detail = fmt.Sprint(t.failed)
	for reason, n := range t.why {
		fail.Detail += fmt.Sprintf("; %d: %s", n, reason)
	}
	for _, by := range slices.Sorted(maps.Keys(t.brokenAt)) {
		if !dead[by] {
			whole.Detail += fmt.Sprintf("; %d: %s", t.brokenAt[by], cmp.Or(by, "a new connection"))
		}
	}
	return []report.Check{
		{Name: "every request is accounted for", Held: t.offered == t.answered+t.failed && t.answered > 0,
			Detail: fmt.Sprintf("%d offered = %d answered + %d failed", t.offered, t.answered, t.failed)},
		fail, whole,
	}
}
