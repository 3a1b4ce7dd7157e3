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
	Stall     float64 // likewise: time lost to missing memory
	Loss      float64 // likewise: segments sent again
	RTT       float64 // likewise: the round trip time to clients, of pando.RTTFull
	Queue     float64 // likewise: bytes that wait on the link of the instance, of pando.QueueFull
	Used      float64 // processors in use, for Judge; 0: not known. No score counts it.
}

// Score is HAVEN Fig. 4: the sum of each weight times the square of its share. The square makes one
// scarce resource count more than two that are half used.
func Score(w pando.Weights, l Load) float64 {
	return w.Bandwidth*l.Bandwidth*l.Bandwidth + w.CPU*l.CPU*l.CPU + w.Memory*l.Memory*l.Memory +
		w.Pressure*l.Pressure*l.Pressure + w.Stall*l.Stall*l.Stall + w.Loss*l.Loss*l.Loss +
		w.RTT*l.RTT*l.RTT + w.Queue*l.Queue*l.Queue
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
// It rises faster than it falls: trouble is seen at once and is believed to last.
func Smooth(former, now float64) float64 {
	if now > former {
		return former + smoothRise*(now-former)
	}
	return former + smoothFall*(now-former)
}

const (
	smoothRise = 0.6
	smoothFall = 0.3
)

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
