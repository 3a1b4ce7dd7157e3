package control

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// These are the least times between two findings of a gate in the store. A verdict is written at
// once.
const (
	gateEvery = 5 * time.Second
	gateTurn  = time.Second // if the new revision is over the gate now, or no longer
)

// gates compares the numbers of the applications between the revisions of rollouts. It writes its
// findings into the records of services, and Decide acts on them. A new leader begins anew.
type gates struct {
	c     *Control
	known map[gate]*lifecycle.Comparison
}

// gate is one rollout with a gate.
type gate struct {
	service pando.ServiceKey
	target  int
}

// wanted returns the rollouts in progress with a gate, and forgets the others.
func (g *gates) wanted() map[gate]pando.Gate {
	g.c.mirror.Mu.RLock()
	defer g.c.mirror.Mu.RUnlock()
	out := map[gate]pando.Gate{}
	for key, v := range g.c.mirror.World.Services {
		if v.V.Trial == nil || v.V.Removing || v.V.Target == v.V.Current {
			continue
		}
		spec, ok := g.c.mirror.World.SpecOf(key, v.V.Target)
		if ok && spec.Rollout.Gate.Metric != "" {
			out[gate{key, v.V.Target}] = spec.Rollout.Gate
		}
	}
	for k := range g.known {
		if _, ok := out[k]; !ok {
			delete(g.known, k)
		}
	}
	return out
}

// judge compares the revisions by one reading of the counters.
func (g *gates) judge(
	ctx context.Context, fence pando.Fence, at time.Time,
	of map[pando.ServiceKey][]pando.EndpointCounters,
) {
	for k, rule := range g.wanted() {
		c := g.known[k]
		if c == nil {
			c = &lifecycle.Comparison{}
			g.known[k] = c
		}
		g.c.mirror.Mu.RLock()
		old, fresh := readings(g.c.mirror.World, k, sample(of[k.service], rule.Metric, at).Gauge)
		g.c.mirror.Mu.RUnlock()
		found := c.Add(rule, old, fresh, at)
		if found == nil {
			continue
		}
		if err := g.write(ctx, fence, k, *found); err != nil && !errors.Is(err, pando.ErrConflict) {
			g.c.mirror.Log.Warn("a finding of a gate could not be written", "service", k.service, "error", err)
		}
	}
}

// readings returns the numbers of the instances in rotation, of the serving revision and of the
// target.
func readings(
	w *world.World, k gate, gauge map[pando.InstanceID]float64,
) (old, fresh []float64) {
	current := w.Services[k.service].V.Current
	for _, i := range w.Of(k.service) {
		v, reported := gauge[i.ID]
		switch {
		case !reported || i.Phase != pando.PhaseInRotation:
		case i.Revision == k.target:
			fresh = append(fresh, v)
		case i.Revision == current:
			old = append(old, v)
		}
	}
	return old, fresh
}

// write puts a finding into the record of its rollout. A later deploy has another target.
func (g *gates) write(
	ctx context.Context, fence pando.Fence, k gate, found pando.Compared,
) error {
	g.c.mirror.Mu.RLock()
	old, ok := g.c.mirror.World.Services[k.service]
	g.c.mirror.Mu.RUnlock()
	t := decide.TrialOf(old.V)
	if !ok || old.V.Target != k.target || old.V.Trial == nil || !news(t.Compared, found) {
		return nil
	}
	svc := old.V
	t.Compared = &found
	svc.Trial = &t
	return g.c.mirror.Commit(ctx, fence, pando.Txn{
		If: []pando.Condition{old.If()}, Put: []pando.Stored{svc},
	})
}

// news reports whether a finding is worth a write.
func news(was *pando.Compared, is pando.Compared) bool {
	if was == nil || was.Worse != is.Worse {
		return true
	}
	age := is.At.Sub(was.At)
	return age >= gateEvery || was.Over != is.Over && age >= gateTurn
}
