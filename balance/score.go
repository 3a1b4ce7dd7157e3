package balance

import (
	"cmp"
	"slices"

	"pando.run/pando"
)

// Load is the input of a score: shares of resources in use.
type Load struct {
	Bandwidth float64 // α: of the path from an ingress to the instance
	CPU       float64 // β
	Memory    float64 // γ
	Pressure  float64 // beyond the paper: a throttled instance may use little of its limit
}

// Score is HAVEN Fig. 4: the sum of each weight times the square of its share. The square makes one
// scarce resource count more than two that are half used.
func Score(w pando.Weights, l Load) float64 {
	return w.Bandwidth*l.Bandwidth*l.Bandwidth + w.CPU*l.CPU*l.CPU + w.Memory*l.Memory*l.Memory +
		w.Pressure*l.Pressure*l.Pressure
}

// Path returns the use of the path from an ingress host to the host of an instance: that of the
// busier of both uplinks (HAVEN Fig. 3: a score for each path). Within a host no link is used.
func Path(ingress, host float64, same bool) float64 {
	if same {
		return 0
	}
	return max(ingress, host)
}

// Scores is HAVEN Fig. 3 for one ingress host: the score of every measured instance of a service,
// by name. An instance without a fresh measurement gets the mean of the others: no better, no
// worse. No measurement at all gives nil.
func Scores(
	w pando.Weights, instances []pando.InstanceID, load map[pando.InstanceID]Load,
) []pando.Score {
	if len(load) == 0 {
		return nil
	}
	out, sum, known := make([]pando.Score, 0, len(instances)), 0.0, 0
	for _, i := range instances {
		l, ok := load[i]
		s := pando.Score{Instance: i, Value: -1}
		if ok {
			s.Value = Score(w, l)
			sum += s.Value
			known++
		}
		out = append(out, s)
	}
	if known == 0 {
		return nil
	}
	for n := range out {
		if out[n].Value < 0 {
			out[n].Value = sum / float64(known)
		}
	}
	slices.SortFunc(out, func(a, b pando.Score) int { return cmp.Compare(a.Instance, b.Instance) })
	return out
}

// Smooth moves a former score towards the newest one. One measurement of 100 ms is noise: a single
// slow request must not turn all flows away.
func Smooth(former, now float64) float64 { return former + smoothing*(now-former) }

const smoothing = 0.3

// Exclusion of an endpoint, as multiples of the mean score of the others. An excluded one returns
// below the lower bound, so it does not flap. No endpoint below excludeLeast is ever excluded: an
// idle service has no bad instance.
const (
	excludeAbove = 2.0
	returnBelow  = 1.3
	excludeLeast = 0.25
)

// Exclude marks the endpoints that are far worse than the rest, at most half of them: the worst
// first. former holds those that were excluded before. If everything is overloaded, nothing is.
func Exclude(scores []pando.Score, former map[pando.InstanceID]bool) {
	sum := 0.0
	for _, s := range scores {
		sum += s.Value
	}
	var bad []int
	for n, s := range scores {
		scores[n].Excluded = false
		if len(scores) < 2 {
			return
		}
		others, factor := (sum-s.Value)/float64(len(scores)-1), excludeAbove
		if former[s.Instance] {
			factor = returnBelow
		}
		if s.Value > factor*others && s.Value > excludeLeast {
			bad = append(bad, n)
		}
	}
	slices.SortStableFunc(bad, func(a, b int) int {
		return cmp.Compare(scores[b].Value, scores[a].Value)
	})
	for _, n := range bad[:min(len(bad), len(scores)/2)] {
		scores[n].Excluded = true
	}
}

// Rank returns the order in which HAVEN Fig. 5 takes the instances between two updates of scores.
//
// The figure takes the least score among the instances with the fewest flows since the update. That
// is round robin over the instances in the order of their scores, from the best one on. from is
// the place at which this ingress begins; 0 is the figure's letter. Several ingress hosts that all
// begin with the best one would send it all of their first flows.
func Rank(scores []pando.Score, from int) []pando.InstanceID {
	sorted := slices.Clone(scores)
	slices.SortStableFunc(sorted, func(a, b pando.Score) int {
		return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Instance, b.Instance))
	})
	out := make([]pando.InstanceID, 0, len(sorted))
	for n := range sorted {
		out = append(out, sorted[(n+from)%len(sorted)].Instance)
	}
	return out
}

// From returns where an ingress host begins in a rank of n instances: hosts are apart as far as
// possible. The only host begins with the best one.
func From(host, hosts, n int) int {
	if hosts < 1 || n < 1 {
		return 0
	}
	return host % hosts * n / hosts % n
}
