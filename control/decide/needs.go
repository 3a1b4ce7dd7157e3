package decide

import (
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// unmet returns the services on which the service waits (lifecycle.Unmet), or "". Only the first
// start of a revision waits. A crash, a larger number or a restart of the machine starts instances
// of a revision that served before, and must not depend on another service. Each run of a job
// waits.
func (d *Draft) unmet() string {
	spec := d.newest()
	served := d.svc.Target == d.svc.Current && !spec.IsJob()
	if served || d.svc.Removing || len(spec.Needs) == 0 {
		return ""
	}
	needs := make([]lifecycle.Needed, 0, len(spec.Needs))
	for _, name := range slices.Sorted(maps.Keys(spec.Needs)) {
		key := pando.ServiceKey{Tenant: d.svc.Tenant, Name: name}
		needs = append(needs, needed(d.w, key, spec.Needs[name]))
	}
	return lifecycle.Unmet(needs)
}

// needed returns the facts about a service on which another one waits.
func needed(w *world.World, key pando.ServiceKey, want pando.Need) lifecycle.Needed {
	n := lifecycle.Needed{Name: key.Name, Condition: want}
	svc, ok := w.Services[key]
	if !ok || svc.V.Removing {
		return n
	}
	s := svc.V
	n.Known, n.State = true, string(s.Phase)+": "+s.Reason
	// A revision that takes over serves only when the rollout has finished.
	n.Serves = s.Current != 0 && s.Phase == pando.ServiceServing
	n.Completed = s.Phase == pando.ServiceCompleted
	switch want {
	case pando.NeedStarted:
		n.Runs = slices.ContainsFunc(w.Of(key), func(i pando.Instance) bool {
			return i.Phase == pando.PhaseStarting || i.Phase.TakesFlows()
		})
	case pando.NeedCompleted:
		if spec, ok := w.SpecOf(key, s.Target); ok {
			_, n.Ended = lifecycle.CleanEnds(w.DecisionsOf(key), spec.Restart)
		}
	}
	return n
}

// done reports whether the instances of the service ran to their end with exit code 0, as many as
// there have to be.
func (d *Draft) done(least int) bool {
	spec := d.newest()
	if spec.Restart == pando.RestartAlways || spec.Restart == "" || least == 0 {
		return false
	}
	clean, last := lifecycle.CleanEnds(d.decisions, spec.Restart)
	return last == "" && clean >= least
}

// NeedsCycle returns the cycle of needs that a spec would close, or "".
func NeedsCycle(w *world.World, s pando.Spec) string {
	cycle := lifecycle.Cycle(s.Name, func(name pando.ServiceName) []pando.ServiceName {
		spec := s
		if name != s.Name {
			key := pando.ServiceKey{Tenant: s.Key().Tenant, Name: name}
			spec, _ = w.SpecOf(key, w.Services[key].V.Target)
		}
		return slices.Sorted(maps.Keys(spec.Needs))
	})
	if cycle == nil {
		return ""
	}
	return lifecycle.CycleText(cycle)
}

// stopLook is the time between two looks at the services that leave before this one.
const stopLook = time.Second

// leavesAfter returns the services that are being removed and need this one: they leave first. None
// if this one is not being removed.
func leavesAfter(w *world.World, key pando.ServiceKey) []pando.ServiceName {
	var out []pando.ServiceName
	for k, s := range w.Services {
		if k.Tenant != key.Tenant || !s.V.Removing || k == key {
			continue
		}
		if spec, ok := w.SpecOf(k, s.V.Target); ok && spec.Needs[key.Name] != "" {
			out = append(out, k.Name)
		}
	}
	slices.Sort(out)
	return out
}
