package agent

import (
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// waveMax is how long a drained instance counts against the next one if no instance replaces it.
const waveMax = time.Minute

// wave is a period in which instances of a service are drained because they do not answer.
type wave struct {
	whole int                       // how many took flows when it began
	last  time.Time                 // when the last one was drained
	out   map[pando.InstanceID]bool // those that it drains
}

// spares returns why an instance may not be drained. It returns "" and counts the instance as out
// if it may. It counts the current instances of this host, which is the home of the service.
func (c *crews) spares(r *runner) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, now, in := c.waves[r.service], c.config.Clock.Now(), 0
	for _, o := range c.of[r.service] {
		_, recorded := c.world.Instances[o.id]
		out := !recorded || w != nil && w.out[o.id]
		if s := c.current(o); s.runs && s.inst.Phase.TakesFlows() && !out {
			in++
		}
	}
	if w == nil || in >= w.whole || now.Sub(w.last) >= waveMax {
		w = &wave{whole: in, out: map[pando.InstanceID]bool{}}
	}
	out := w.whole - in
	if !lifecycle.MayEnd(out, in, w.whole) {
		if in < 2 {
			return "it is the last in rotation"
		}
		return fmt.Sprintf("%d of %d are out of rotation", out, w.whole)
	}
	w.last, w.out[r.id] = now, true
	c.waves[r.service] = w
	return ""
}
