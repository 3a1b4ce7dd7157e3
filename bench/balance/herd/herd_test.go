package herd

import (
	"os"
	"testing"
	"time"

	"pando.run/pando"
)

// compiled returns the program of the choice.
func compiled(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	program, err := Compile(root(dir), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// alike returns instances with a processor each.
func alike(n int) (out []float64) {
	for range n {
		out = append(out, 1)
	}
	return out
}

// Ten hosts follow the same scores and share no flows. The kernel's choice gives alike instances
// alike numbers of flows, over all and within each interval. The best score alone herds.
func TestTenHostsDoNotHerd(t *testing.T) {
	program := compiled(t)
	for _, share := range []float64{0.3, 0.6, 0.9} {
		h := Hosts{PerHost: 2000, Share: share, Capacity: alike(16), Hosts: 10}
		if err := h.Run(program, 5*time.Second, 1); err != nil {
			t.Fatal(err)
		}
		if all, within := Spread(h.Flows), h.Within(); all > 1.05 || within > 1.2 {
			t.Errorf("at %g of the processors: %.3f over all, %.3f within an interval", share, all, within)
		}
	}
	h := Hosts{PerHost: 2000, Share: 0.6, Capacity: alike(16), Hosts: 10, Best: true}
	if err := h.Run(program, 5*time.Second, 1); err != nil {
		t.Fatal(err)
	}
	if within := h.Within(); within < 8 {
		t.Errorf("the best score alone spreads by %.2f only: the test cannot fail", within)
	}
}

func TestASlowInstanceGetsFewFlows(t *testing.T) {
	h := Hosts{PerHost: 1000, Share: 0.6, Capacity: append(alike(7), 0.1), Hosts: 10}
	if err := h.Run(compiled(t), 10*time.Second, 1); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range h.Flows {
		sum += n
	}
	if share := float64(h.Flows[7]) / float64(sum); share > 0.05 {
		t.Errorf("an instance with a tenth of the processor gets %.1f %% of the flows", 100*share)
	}
}

func TestChoicesFollowTheKernelsRules(t *testing.T) {
	c, err := NewChooser(compiled(t), []pando.InstanceID{"a", "b"}, buckets)
	if err != nil {
		t.Fatal(err)
	}
	c.By(byScore)
	c.Score(3, 0, pando.Score{Value: 0.1, Excluded: true})
	c.Score(3, 1, pando.Score{Value: 0.9})
	hosts, hashed := make([]int, 100), make([]uint32, 100)
	for n := range hosts {
		hosts[n], hashed[n] = 3, uint32(n)*0x9e3779b9
	}
	got, err := c.Choose(hosts, hashed)
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for _, at := range got {
		if at != 1 {
			bad++
		}
	}
	// Eight draws of two instances miss the better one with a chance of 1 in 256.
	if bad > 4 {
		t.Errorf("%d of 100 flows went to an excluded instance", bad)
	}
	c.Score(0, 99999, pando.Score{})
	if _, err := c.Choose(hosts, hashed); err == nil {
		t.Error("an unknown instance has a score")
	}
	if err := c.Close(); err == nil {
		t.Error("the program ends well after an unknown instance")
	}
}
