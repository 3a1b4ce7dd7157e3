package balance

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// Exclusion of an endpoint, as multiples of the mean score of the others. An excluded one returns
// below the lower bound. No endpoint below excludeLeast is ever excluded: an idle service has no
// bad instance.
const (
	excludeAbove = 2.0
	returnBelow  = 1.3
	excludeLeast = 0.25
)

// An endpoint must have been bad for this long, in every measurement. A single long request of a
// small instance looks the same for some tenths of a second. Meanwhile the choice at the SYN avoids
// a bad endpoint, because it weighs the score.
const badFor = time.Second

// A weak endpoint is held back by its processor limit, and uses less than weakShare of the mean
// processor time of the others. Its limit was lowered. A long request looks different: an endpoint
// that works on it uses its whole limit. So a weak endpoint is out after weakFor: the third
// measurement of 100 ms. The score alone finds it late or never: if all have limits, an endpoint at
// full use and one with a tenth of its limit have scores that differ by less than excludeAbove.
const (
	weakHeld  = 0.5 // share of the time that the limit held it back
	weakShare = 0.25
	weakFor   = 150 * time.Millisecond
)

// An endpoint stays out at least for outMin, and twice as long after each return that failed. A
// slow endpoint recovers while it is out, so its score alone would call it back ten times a second,
// each time for a burst of flows. After a good return of outMax, its history is forgotten.
const (
	outMin = time.Second
	outMax = 30 * time.Second
)

// Scores this near to the mean count as equal. Measurements of alike instances differ by noise, and
// all ingress hosts would follow it.
const (
	bandLeast = 0.1
	bandShare = 0.25
)

// Judge turns the scores of one service into those that the steering uses. Its state is bounded by
// the endpoints of the service.
type Judge struct {
	out  map[pando.InstanceID]*penalty
	bad  map[pando.InstanceID]time.Time // the first bad measurement in a row
	weak map[pando.InstanceID]time.Time // the first weak measurement in a row
}

// penalty is the history of one endpoint that was excluded.
type penalty struct {
	excluded bool
	since    time.Time // of the exclusion, or of the return
	time     time.Duration
}

// An endpoint that returns is idle, and would attract twice its share before its next measurement.
// Its score therefore begins at this multiple of the mean, and falls to it in the time that it was
// out.
const returnFactor = 8.0

// Step marks the endpoints that are far worse than the rest, at most half of them: the worst first.
// Then it evens out small differences. The loads are those of the scores; one may be missing.
func (j *Judge) Step(
	now time.Time, scores []pando.Score, loads map[pando.InstanceID]Load,
) {
	if j.out == nil {
		j.out = map[pando.InstanceID]*penalty{}
		j.bad = map[pando.InstanceID]time.Time{}
		j.weak = map[pando.InstanceID]time.Time{}
	}
	j.forget(scores)
	bad := j.find(now, scores, loads)
	slices.SortStableFunc(bad, func(a, b int) int {
		return cmp.Compare(scores[b].Value, scores[a].Value)
	})
	excluded := map[int]bool{}
	for _, n := range bad[:min(len(bad), len(scores)/2)] {
		excluded[n] = true
	}
	for n := range scores {
		scores[n].Excluded = excluded[n]
		j.note(now, scores[n].Instance, excluded[n])
	}
	j.even(now, scores)
}

// forget drops the history of endpoints that are gone.
func (j *Judge) forget(scores []pando.Score) {
	here := make(map[pando.InstanceID]bool, len(scores))
	for _, s := range scores {
		here[s.Instance] = true
	}
	maps.DeleteFunc(j.out, func(i pando.InstanceID, _ *penalty) bool { return !here[i] })
	maps.DeleteFunc(j.bad, func(i pando.InstanceID, _ time.Time) bool { return !here[i] })
	maps.DeleteFunc(j.weak, func(i pando.InstanceID, _ time.Time) bool { return !here[i] })
}

// find returns the places of the endpoints to exclude.
func (j *Judge) find(
	now time.Time, scores []pando.Score, loads map[pando.InstanceID]Load,
) (out []int) {
	// An endpoint that is out, or has just returned, has less load than its share. The mean leaves it
	// out, because it would make the others look bad.
	sum, in, used := 0.0, 0.0, 0.0
	for _, s := range scores {
		if !j.restricted(now, s.Instance) {
			sum += s.Value
			used += loads[s.Instance].Used
			in++
		}
	}
	for n, s := range scores {
		rest, others, work := in, sum, used
		if !j.restricted(now, s.Instance) {
			rest, others, work = in-1, sum-s.Value, used-loads[s.Instance].Used
		}
		bad := j.worse(now, s, others/max(rest, 1), rest)
		weak := j.isWeak(now, s.Instance, loads[s.Instance], work/max(rest, 1))
		if bad || weak {
			out = append(out, n)
		}
	}
	return out
}

// isWeak reports whether an endpoint has been weak for long enough, by the processors in use by
// each of the others.
func (j *Judge) isWeak(now time.Time, i pando.InstanceID, l Load, others float64) bool {
	if l.Pressure < weakHeld || l.Used <= 0 || l.Used >= weakShare*others {
		delete(j.weak, i)
		return false
	}
	since, ok := j.weak[i]
	if !ok {
		j.weak[i] = now
	}
	return ok && now.Sub(since) >= weakFor
}

// restricted reports whether an endpoint is out, or has returned for less time than it was out.
func (j *Judge) restricted(now time.Time, i pando.InstanceID) bool {
	p := j.out[i]
	return p != nil && (p.excluded || now.Sub(p.since) < p.time)
}

// worse reports whether an endpoint is to be out, by the mean score and the number of the others.
// Without it, each other takes a part of its load, and a score grows with the square of the load.
// An exclusion that made the others worse than the excluded endpoint would be no gain.
func (j *Judge) worse(now time.Time, s pando.Score, others, rest float64) bool {
	if p := j.out[s.Instance]; p != nil && p.excluded {
		return now.Sub(p.since) < p.time || s.Value > max(returnBelow*others, excludeLeast)
	}
	more := (rest + 1) / max(rest, 1)
	if s.Value <= max(excludeAbove, more*more)*others || s.Value <= excludeLeast {
		delete(j.bad, s.Instance)
		return false
	}
	since, ok := j.bad[s.Instance]
	if !ok {
		j.bad[s.Instance] = now
		return false
	}
	return now.Sub(since) >= badFor
}

// note keeps the history of an endpoint.
func (j *Judge) note(now time.Time, i pando.InstanceID, excluded bool) {
	p := j.out[i]
	if excluded {
		delete(j.bad, i) // a return begins anew
		delete(j.weak, i)
	}
	switch {
	case p == nil && excluded:
		j.out[i] = &penalty{true, now, outMin}
	case p == nil:
	case excluded && !p.excluded:
		p.excluded, p.since, p.time = true, now, min(2*p.time, outMax)
	case !excluded && p.excluded:
		p.excluded, p.since = false, now
	case !excluded && now.Sub(p.since) >= outMax:
		delete(j.out, i)
	}
}

// even sets the scores below the band above the mean to the mean. Excluded endpoints do not count.
func (j *Judge) even(now time.Time, scores []pando.Score) {
	sum, n := 0.0, 0
	for _, s := range scores {
		if !s.Excluded {
			sum += s.Value
			n++
		}
	}
	if n == 0 {
		return
	}
	mean := sum / float64(n)
	band := mean + max(bandLeast, bandShare*mean)
	for at, s := range scores {
		switch p := j.out[s.Instance]; {
		case s.Excluded:
		case p != nil && now.Sub(p.since) < p.time:
			rest := 1 - float64(now.Sub(p.since))/float64(p.time)
			scores[at].Value = max(s.Value, band+(returnFactor-1)*rest*(mean+bandLeast))
		case s.Value <= band:
			scores[at].Value = mean
		}
	}
}
