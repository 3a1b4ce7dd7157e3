package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
)

// plant simulates instances behind several ingress hosts in virtual time, by the rules of this
// package and of bpf/choose.h. A host measures every 100 ms, and its numbers reach the others one
// interval later.
type plant struct {
	random   *rand.Rand
	capacity []float64 // processors of each instance
	queue    [][]job   // of each instance
	used     []float64 // processor seconds since the last measurement
	held     []float64 // seconds with waiting work since then
	meters   []Load
	fresh    []Load // measured, on their way
	scores   []pando.Score
	flows    []int
	live     [][]int // flows of each ingress host to each instance
	at       int     // the ingress host of the next flow
	waits    []float64
	judge    Judge
	now      time.Time
	perTick  [][]int // flows of each instance by interval
}

// job is the rest of one request.
type job struct {
	at, rest float64
	ingress  int
}

const (
	step      = 0.001
	interval  = 100 // steps
	ingresses = 10
)

func newPlant(capacity ...float64) *plant {
	n := len(capacity)
	p := &plant{
		random: rand.New(rand.NewPCG(1, 2)), capacity: capacity, queue: make([][]job, n),
		used: make([]float64, n), held: make([]float64, n), meters: make([]Load, n),
		fresh: make([]Load, n), flows: make([]int, n), scores: make([]pando.Score, n),
	}
	for range ingresses {
		p.live = append(p.live, make([]int, n))
	}
	return p
}

// run simulates seconds at a rate of requests, each with a mean demand, and chooses by choose.
func (p *plant) run(seconds, rate, demand float64, choose func() int) {
	for n := range p.scores {
		p.scores[n].Instance = pando.InstanceID(fmt.Sprintf("web-%d", n))
	}
	due, now, tick := 0.0, 0.0, make([]int, len(p.capacity))
	for s := 0; now < seconds; s, now = s+1, now+step {
		for ; due < now; due += p.random.ExpFloat64() / rate {
			p.at = p.random.IntN(ingresses)
			n := choose()
			p.flows[n]++
			p.live[p.at][n]++
			tick[n]++
			p.queue[n] = append(p.queue[n], job{now, p.random.ExpFloat64() * demand, p.at})
		}
		for n := range p.queue {
			p.work(n, now)
		}
		if s%interval == interval-1 {
			p.measure()
			p.perTick = append(p.perTick, slices.Clone(tick))
			clear(tick)
		}
	}
}

// work spends one step of processor time on an instance.
func (p *plant) work(n int, now float64) {
	left := step * p.capacity[n]
	for len(p.queue[n]) > 0 && left > 0 {
		j := &p.queue[n][0]
		spent := min(left, j.rest)
		j.rest, left = j.rest-spent, left-spent
		p.used[n] += spent
		if j.rest > 0 {
			p.held[n] += step
			break
		}
		p.waits = append(p.waits, now-j.at)
		p.live[j.ingress][n]--
		p.queue[n] = p.queue[n][1:]
	}
}

// measure smooths the use, and scores by the measurement before.
func (p *plant) measure() {
	load := map[pando.InstanceID]Load{}
	names := make([]pando.InstanceID, len(p.scores))
	for n, s := range p.scores {
		names[n] = s.Instance
		load[s.Instance] = p.fresh[n]
		over := step * interval
		p.fresh[n] = Load{
			CPU:      Smooth(p.fresh[n].CPU, min(p.used[n]/(over*p.capacity[n]), 1)),
			Pressure: p.pressure(n, over),
			Used:     (p.fresh[n].Used + p.used[n]/over) / 2,
		}
		p.used[n], p.held[n] = 0, 0
	}
	p.scores = Scores(pando.WeightsDefault, names, load)
	p.now = p.now.Add(interval * time.Millisecond)
	p.judge.Step(p.now, p.scores, load)
}

// pressure is the time in which a limited instance was held back.
func (p *plant) pressure(n int, over float64) float64 {
	if p.capacity[n] >= 1 {
		return 0
	}
	return Smooth(p.fresh[n].Pressure, min(p.held[n]/over, 1))
}

// byScore is the choice of bpf/choose.h: the better of two draws, with up to 8 draws while one of
// them is excluded, and up to 32 while all are.
func (p *plant) byScore() int {
	best, good := -1, 0
	for draw := range 32 {
		if draw >= 8 && good > 0 {
			break
		}
		n := p.random.IntN(len(p.scores))
		if n == best {
			continue
		}
		if best < 0 || p.better(n, best) {
			best = n
		}
		if !p.scores[n].Excluded {
			if good++; good > 1 {
				break
			}
		}
	}
	return best
}

// better weighs each score by the flows that the ingress host has there, and the one to come.
func (p *plant) better(a, b int) bool {
	if x, y := p.scores[a].Excluded, p.scores[b].Excluded; x != y {
		return y
	}
	live := p.live[p.at]
	mine, best := float64(live[a]+1), float64(live[b]+1)
	mine, best = min(mine, 8*best), min(best, 8*mine)
	return mine*(p.scores[a].Value+1./16) < best*(p.scores[b].Value+1./16)
}

// price is the score alone.
func (p *plant) price(n int) float64 {
	if p.scores[n].Excluded {
		return math.Inf(1)
	}
	return p.scores[n].Value
}

// byBest sends every flow to the best score: the policy that herds.
func (p *plant) byBest() int {
	best := 0
	for n := range p.scores {
		if p.price(n) < p.price(best) {
			best = n
		}
	}
	return best
}

// byLeast sends every flow to an instance with the fewest jobs: leastconn of one balancer.
func (p *plant) byLeast() int {
	best, from := 0, p.random.IntN(len(p.queue))
	for n := range p.queue {
		n = (n + from) % len(p.queue)
		if n == from || len(p.queue[n]) < len(p.queue[best]) {
			best = n
		}
	}
	return best
}

func (p *plant) byHash() int { return p.random.IntN(len(p.scores)) }

// p99 returns the 99th percentile of the times in the plant.
func (p *plant) p99() float64 {
	slices.Sort(p.waits)
	return p.waits[len(p.waits)*99/100]
}

// spread returns the largest number of flows of an instance, over the mean.
func spread(flows []int) float64 {
	sum := 0
	for _, n := range flows {
		sum += n
	}
	return float64(slices.Max(flows)) * float64(len(flows)) / float64(max(sum, 1))
}

// swing returns the mean spread within an interval: 1 is even, the number of instances is a herd.
func (p *plant) swing() float64 {
	sum := 0.0
	for _, t := range p.perTick[10:] {
		sum += spread(t)
	}
	return sum / float64(len(p.perTick)-10)
}

// Alike instances get alike numbers of flows, over all and within each interval, with ten ingress
// hosts that follow the same scores. The choice of the best score herds: the test can fail.
func TestScoreNeitherHerdsNorSwings(t *testing.T) {
	for _, load := range []float64{0.3, 0.6, 0.8, 0.9} {
		run := func(by func(*plant) func() int) *plant {
			p := newPlant(1, 1, 1, 1, 1, 1, 1, 1)
			p.run(20, 8000, load*8/8000, by(p))
			return p
		}
		score := run(func(p *plant) func() int { return p.byScore })
		hash := run(func(p *plant) func() int { return p.byHash })
		if s, w := spread(score.flows), score.swing(); s > 1.05 || w > 1.2 {
			t.Errorf("at a load of %g: spread %.2f, swing %.2f", load, s, w)
		}
		if a, b := score.p99(), hash.p99(); a > 1.1*b {
			t.Errorf("at a load of %g: p99 is %.4f s, by hash %.4f s", load, a, b)
		}
	}
	p := newPlant(1, 1, 1, 1, 1, 1, 1, 1)
	p.run(20, 8000, 0.6/1000, p.byBest)
	if p.swing() < 4 {
		t.Errorf("the best score alone swings only %.2f", p.swing())
	}
}

// One of four instances is throttled to a tenth: it loses its flows, and the tail is far shorter
// than by hash or in turn.
func TestScoreAvoidsTheThrottled(t *testing.T) {
	run := func(by func(*plant) func() int) *plant {
		p := newPlant(1, 1, 1, 0.1)
		p.run(60, 500, 0.6*4/500, by(p))
		return p
	}
	score := run(func(p *plant) func() int { return p.byScore })
	hash := run(func(p *plant) func() int { return p.byHash })
	next := 0
	turn := run(func(*plant) func() int { return func() int { next++; return next % 4 } })
	if share := float64(score.flows[3]) / 30000; share > 0.01 {
		t.Errorf("the throttled instance gets %.1f %% of the flows", 100*share)
	}
	if even := spread(score.flows[:3]); even > 1.1 {
		t.Errorf("the healthy ones get %v", score.flows)
	}
	if a, b := score.p99(), min(hash.p99(), turn.p99()); a > b/100 {
		t.Errorf("p99 is %.2f s, by hash or in turn %.2f s", a, b)
	}
	t.Logf("flows %v; p99 %.3f s by score, %.3f by hash, %.3f in turn", score.flows, score.p99(),
		hash.p99(), turn.p99())
}

// All four have a small limit, so the limit holds back each of them, and their scores differ by
// less than two. The one with a tenth of it still loses its flows.
func TestScoreAvoidsTheThrottledOfTheLimited(t *testing.T) {
	p := newPlant(0.25, 0.25, 0.25, 0.025)
	p.run(60, 200, 0.6/200, p.byScore)
	if share := float64(p.flows[3]) / 12000; share > 0.005 {
		t.Errorf("the throttled instance gets %.2f %% of the flows", 100*share)
	}
	if even := spread(p.flows[:3]); even > 1.1 {
		t.Errorf("the healthy ones get %v", p.flows)
	}
	leastconn := newPlant(0.25, 0.25, 0.25, 0.025)
	leastconn.run(60, 200, 0.6/200, leastconn.byLeast)
	if a, b := p.p99(), leastconn.p99(); a > b/2 {
		t.Errorf("p99 is %.3f s, by the fewest connections %.3f s", a, b)
	}
	t.Logf("flows %v; p99 %.3f s, %.3f by the fewest connections", p.flows, p.p99(),
		leastconn.p99())
}
