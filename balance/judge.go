package balance

import (
	"cmp"
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
type Judge struct{ out map[pando.InstanceID]*penalty }

// penalty is the history of one endpoint that was excluded.
type penalty struct {
	excluded bool
	since    time.Time // of the exclusion, or of the return
	time     time.Duration
}

// Step marks the endpoints that are far worse than the rest, at most half of them: the worst first.
// Then it evens out small differences. An endpoint that returns is idle, and would attract twice
// its share. Its score therefore begins above the others.
func (j *Judge) Step(now time.Time, scores []pando.Score) {
	if j.out == nil {
		j.out = map[pando.InstanceID]*penalty{}
	}
	j.forget(scores)
	bad := j.bad(now, scores)
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
	for i := range j.out {
		if !slices.ContainsFunc(scores, func(s pando.Score) bool { return s.Instance == i }) {
			delete(j.out, i)
		}
	}
}

// bad returns the places of the endpoints to exclude.
func (j *Judge) bad(now time.Time, scores []pando.Score) (out []int) {
	sum := 0.0
	for _, s := range scores {
		sum += s.Value
	}
	for n, s := range scores {
		others := (sum - s.Value) / max(float64(len(scores)-1), 1)
		p, factor := j.out[s.Instance], excludeAbove
		if p != nil && p.excluded {
			if now.Sub(p.since) < p.time {
				out = append(out, n)
				continue
			}
			factor = returnBelow
		}
		if s.Value > factor*others && s.Value > excludeLeast {
			out = append(out, n)
		}
	}
	return out
}

// note keeps the history of an endpoint.
func (j *Judge) note(now time.Time, i pando.InstanceID, excluded bool) {
	p := j.out[i]
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
			scores[at].Value = max(s.Value, band+bandLeast)
		case s.Value <= band:
			scores[at].Value = mean
		}
	}
}
