package herd

import (
	"fmt"
	"math/rand/v2"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// Hosts simulates ingress hosts and the instances of one service in steps of virtual time. Every
// instance has a processor of its own. An instance is measured each interval, and the hosts have
// its score one interval later, all at the same moment.
type Hosts struct {
	PerHost  float64 // new flows per second of an ingress host
	Share    float64 // of the processors in use, on average
	Capacity []float64
	Hosts    int
	// Best sends each flow to the instance with the best score: the policy that herds. Nil uses the
	// choice of the kernel.
	Best bool

	dice    *rand.Rand
	names   []pando.InstanceID
	queue   [][]flow
	used    []float64
	fresh   []balance.Load
	scores  []pando.Score
	judge   balance.Judge
	chooser *Chooser
	now     time.Time
	// Flows counts the flows of each instance, and Intervals those of each interval.
	Flows     []int
	Intervals [][]int
}

// flow has the rest of the work of a flow, in processor seconds.
type flow struct {
	rest    float64
	ingress int
}

const (
	step     = time.Millisecond
	interval = 100 * step
	buckets  = 4096
)

// Run simulates a time with a seed.
func (h *Hosts) Run(program string, lasts time.Duration, seed uint64) error {
	if err := h.begin(program, seed); err != nil {
		return err
	}
	tick := make([]int, len(h.Capacity))
	for at := time.Duration(0); at < lasts; at += step {
		chosen, hosts, err := h.choose()
		if err != nil {
			return err
		}
		for n, i := range chosen {
			h.Flows[i]++
			tick[i]++
			h.queue[i] = append(h.queue[i], flow{h.work(), hosts[n]})
		}
		for i := range h.queue {
			h.serve(i)
		}
		if (at+step)%interval == 0 {
			h.measure()
			h.Intervals = append(h.Intervals, tick)
			tick = make([]int, len(h.Capacity))
		}
	}
	return h.chooser.Close()
}

func (h *Hosts) begin(program string, seed uint64) (err error) {
	n := len(h.Capacity)
	h.dice = rand.New(rand.NewPCG(seed, 1))
	h.queue, h.used, h.fresh = make([][]flow, n), make([]float64, n), make([]balance.Load, n)
	h.Flows, h.Intervals = make([]int, n), nil
	h.names, h.scores, h.judge = nil, nil, balance.Judge{}
	for i := range n {
		name := pando.InstanceID(fmt.Sprintf("web-%03d", i))
		h.names = append(h.names, name)
		h.scores = append(h.scores, pando.Score{Instance: name})
	}
	if h.chooser, err = NewChooser(program, h.names, buckets); err == nil {
		h.chooser.By(byScore)
	}
	return err
}

// work draws the processor seconds of a flow.
func (h *Hosts) work() float64 {
	sum := 0.0
	for _, c := range h.Capacity {
		sum += c
	}
	return h.dice.ExpFloat64() * h.Share * sum / (h.PerHost * float64(h.Hosts))
}

// choose returns the instances and the ingress hosts of the flows of one step.
func (h *Hosts) choose() (chosen, hosts []int, err error) {
	var hashed []uint32
	mean := h.PerHost * step.Seconds()
	for host := range h.Hosts {
		for due := h.dice.ExpFloat64(); due < mean; due += h.dice.ExpFloat64() {
			hosts, hashed = append(hosts, host), append(hashed, h.dice.Uint32())
		}
	}
	h.dice.Shuffle(len(hosts), func(a, b int) { hosts[a], hosts[b] = hosts[b], hosts[a] })
	if !h.Best {
		chosen, err = h.chooser.Choose(hosts, hashed)
		return chosen, hosts, err
	}
	best := 0
	for i, s := range h.scores {
		if s.Value < h.scores[best].Value {
			best = i
		}
	}
	for range hosts {
		chosen = append(chosen, best)
	}
	return chosen, hosts, nil
}

// serve spends one step of processor time on an instance.
func (h *Hosts) serve(i int) {
	left := step.Seconds() * h.Capacity[i]
	for len(h.queue[i]) > 0 && left > 0 {
		f := &h.queue[i][0]
		spent := min(left, f.rest)
		f.rest, left = f.rest-spent, left-spent
		h.used[i] += spent
		if f.rest > 0 {
			return
		}
		if !h.Best {
			h.chooser.End(f.ingress, i)
		}
		h.queue[i] = h.queue[i][1:]
	}
}

// measure gives all hosts the scores of the former measurement, and takes a new one.
func (h *Hosts) measure() {
	load := map[pando.InstanceID]balance.Load{}
	for i, name := range h.names {
		load[name] = h.fresh[i]
		now := min(h.used[i]/(interval.Seconds()*h.Capacity[i]), 1)
		h.fresh[i] = balance.Load{CPU: balance.Smooth(h.fresh[i].CPU, now)}
		h.used[i] = 0
	}
	h.scores = balance.Scores(pando.WeightsDefault, h.names, load)
	h.now = h.now.Add(interval)
	h.judge.Step(h.now, h.scores, load)
	for host := range h.Hosts {
		for i, s := range h.scores {
			h.chooser.Score(host, i, s)
		}
	}
}

// Spread returns the largest number of flows of an instance over the mean of all.
func Spread(flows []int) float64 {
	sum, most := 0, 0
	for _, n := range flows {
		sum, most = sum+n, max(most, n)
	}
	return float64(most) * float64(len(flows)) / float64(max(sum, 1))
}

// Within returns the mean spread within an interval, after the first second.
func (h *Hosts) Within() (mean float64) {
	later := h.Intervals[min(len(h.Intervals), int(time.Second/interval)):]
	for _, flows := range later {
		mean += Spread(flows) / float64(len(later))
	}
	return mean
}
