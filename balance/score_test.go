package balance

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// HAVEN §III-B has no numbers but an order: "a VM u with high CPU utilization and low memory
// utilization will have a higher score than a VM v with moderate ones".
func TestScoreIsTheSumOfWeightedSquares(t *testing.T) {
	one := pando.Weights{Bandwidth: 1, CPU: 1, Memory: 1}
	for _, c := range []struct {
		w    pando.Weights
		l    Load
		want float64
	}{
		{one, Load{}, 0},
		{one, Load{Bandwidth: 1, CPU: 1, Memory: 1}, 3},
		{one, Load{CPU: 0.9, Memory: 0.1}, 0.82},
		{one, Load{CPU: 0.5, Memory: 0.5}, 0.5},
		{pando.Weights{CPU: 2, Memory: 0.5}, Load{Bandwidth: 1, CPU: 0.5, Memory: 0.4}, 0.58},
		{pando.Weights{Pressure: 4}, Load{CPU: 1, Pressure: 0.5}, 1},
		{pando.Weights{Stall: 4, Loss: 2, RTT: 1}, Load{CPU: 1, Stall: 0.5, Loss: 1, RTT: 0.5}, 3.25},
		{pando.Weights{Queue: 4, CPU: 1}, Load{CPU: 1, Queue: 0.5}, 2},
		{pando.WeightsDefault, Load{Stall: 1, Loss: 1, RTT: 1, Queue: 1}, 0},
	} {
		if got := Score(c.w, c.l); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v of %+v is %g, want %g", c.w, c.l, got, c.want)
		}
	}
	u, v := Score(one, Load{CPU: 0.9, Memory: 0.1}), Score(one, Load{CPU: 0.5, Memory: 0.5})
	if u <= v {
		t.Errorf("one scarce resource scores %g, two half used ones %g", u, v)
	}
}

func TestAPathIsItsBusierLink(t *testing.T) {
	for _, c := range []struct {
		ingress, host float64
		same          bool
		want          float64
	}{{0.2, 0.7, false, 0.7}, {0.9, 0.7, false, 0.9}, {0.9, 0.9, true, 0}} {
		if got := Path(c.ingress, c.host, c.same); got != c.want {
			t.Errorf("%+v: %g", c, got)
		}
	}
}

func TestAnUnmeasuredInstanceIsAverage(t *testing.T) {
	ids := []pando.InstanceID{"c", "a", "b"}
	load := map[pando.InstanceID]Load{"a": {CPU: 1}, "c": {CPU: 0}}
	got := Scores(pando.Weights{CPU: 1}, ids, load)
	want := []pando.Score{{Instance: "a", Value: 1}, {Instance: "b", Value: 0.5}, {Instance: "c"}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, want %v", got, want)
	}
	for _, load := range []map[pando.InstanceID]Load{nil, {"gone": {CPU: 1}}} {
		if got := Scores(pando.WeightsDefault, ids, load); got != nil {
			t.Errorf("scores without a measurement: %v", got)
		}
	}
}

func scoresOf(values []float64) []pando.Score {
	out := make([]pando.Score, len(values))
	for n, v := range values {
		out[n] = pando.Score{Instance: pando.InstanceID(fmt.Sprintf("web-%d", n)), Value: v}
	}
	return out
}

// figure5 is HAVEN Fig. 5, line by line. Its map of flow counts is cleared at each update. Equal
// scores are taken by name: the figure leaves that open.
type figure5 struct {
	scores  []pando.Score
	updated bool
	theta   map[pando.InstanceID]int
}

func (f *figure5) loadBalancer() pando.InstanceID {
	var active []pando.Score
	if f.updated { // line 2
		active = f.scores
		f.theta = map[pando.InstanceID]int{} // line 6
		f.updated = false
	} else { // line 11
		least := math.MaxInt
		for _, s := range f.scores {
			least = min(least, f.theta[s.Instance])
		}
		for _, s := range f.scores {
			if f.theta[s.Instance] == least {
				active = append(active, s)
			}
		}
	}
	best := active[0]
	for _, s := range active[1:] { // line 18
		if s.Value < best.Value || s.Value == best.Value && s.Instance < best.Instance {
			best = s
		}
	}
	f.theta[best.Instance]++ // line 20
	return best.Instance
}

// The rank with a counter chooses as the figure does, over random histories of updates and flows.
func TestRankIsFigure5(t *testing.T) {
	choices := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "instances")
		f, rank, turn := &figure5{}, []pando.InstanceID(nil), 0
		update := func() {
			values := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.5, 1, 2}), n, n)
			f.scores = scoresOf(values.Draw(t, "scores"))
			f.updated = true
			rank, turn = Rank(f.scores, 0), 0
		}
		update()
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			if rapid.IntRange(0, 15).Draw(t, "event") == 0 {
				update()
				continue
			}
			want, got := f.loadBalancer(), rank[turn%len(rank)]
			turn++
			choices++
			if got != want {
				t.Fatalf("flow %d since the update goes to %s, want %s", turn, got, want)
			}
		}
	})
	t.Logf("0 differences in %d choices", choices)
}

func TestIngressHostsBeginApart(t *testing.T) {
	for _, c := range []struct{ host, hosts, n, want int }{
		{0, 1, 4, 0}, {0, 4, 4, 0}, {1, 4, 4, 1}, {3, 4, 4, 3}, {1, 2, 8, 4}, {9, 10, 4, 3},
		{0, 0, 4, 0}, {3, 4, 0, 0},
	} {
		if got := From(c.host, c.hosts, c.n); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	got := Rank(scoresOf([]float64{3, 1, 2}), 1)
	if fmt.Sprint(got) != "[web-2 web-0 web-1]" {
		t.Errorf("from the second best on: %v", got)
	}
}
