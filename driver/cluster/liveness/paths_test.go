package liveness

import (
	"slices"
	"testing"

	"pando.run/pando"
)

// The link between two of three hosts is cut. The third one answers for both, so neither is dead. Each
// finds the other one cut off, until the link is back.
func TestALivingHostBehindACutLinkIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for _, h := range c.hosts {
		c.meets(h.Name, 3)
	}
	one, two := c.hosts[0], c.hosts[1]
	hears := func(does bool) { // the packets of h2 reach h1
		p := c.at[one.Name]
		p.mu.Lock()
		defer p.mu.Unlock()
		p.known[two.Address] = does
	}
	for _, h := range []pando.HostName{one.Name, two.Name} {
		c.doors[h].frozen.Store(true)
	}
	hears(false)
	for from, to := range map[pando.HostName]pando.HostName{one.Name: two.Name, two.Name: one.Name} {
		c.await(string(from)+" to find "+string(to)+" cut off", func() bool {
			return slices.Equal(c.at[from].Cut(), []pando.HostName{to})
		})
	}
	for _, h := range c.hosts {
		if dead := c.deadAt(h.Name); len(dead) > 0 {
			t.Errorf("%s finds %v dead", h.Name, dead)
		}
	}
	if cut := c.at["h3"].Cut(); len(cut) > 0 {
		t.Errorf("h3 finds %v cut off, which answer it", cut)
	}
	news := c.at[one.Name].Changed()
	hears(true)
	for _, h := range []pando.HostName{one.Name, two.Name} {
		c.await("the way of "+string(h), func() bool { return len(c.at[h].Cut()) == 0 })
	}
	select {
	case <-news:
	default:
		t.Error("the end of the cut was no news")
	}
}
