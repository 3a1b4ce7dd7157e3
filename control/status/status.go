// Package status answers what operators ask about services and hosts, from the copy of the store.
// It changes nothing.
package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/mirror"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// Reader answers what operators ask about services.
type Reader struct{ Mirror *mirror.Mirror }

// Services implements pando.Operators.
func (r *Reader) Services(context.Context) ([]pando.ServiceStatus, error) {
	r.Mirror.Mu.RLock()
	defer r.Mirror.Mu.RUnlock()
	out := []pando.ServiceStatus{}
	for _, s := range r.Mirror.World.Names() {
		if st, ok := r.Of(s); ok {
			out = append(out, st)
		}
	}
	for _, s := range r.Mirror.World.FrozenServices() {
		if _, listed := r.Mirror.World.Services[s]; !listed {
			st, _ := r.Of(s)
			out = append(out, st)
		}
	}
	return out, nil
}

// Service implements pando.Operators.
func (r *Reader) Service(_ context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	r.Mirror.Mu.RLock()
	defer r.Mirror.Mu.RUnlock()
	st, ok := r.Of(s)
	if !ok {
		return st, fmt.Errorf("service %s: %w; `pando status` lists the services", s, pando.ErrNotFound)
	}
	if spec, ok := r.Mirror.World.SpecOf(s, st.Target); ok {
		st.Spec = &spec
	}
	return st, nil
}

// Of returns the stored status of a service, with the problem that one of its records cannot be
// read or its decisions cannot be written. The caller holds the lock.
func (r *Reader) Of(s pando.ServiceKey) (pando.ServiceStatus, bool) {
	st, ok := r.recorded(s)
	if k, several := r.Mirror.World.Keepers[s]; several {
		st.Keeper = &k.V
		st.Reason = strings.Trim(st.Reason+"; "+lifecycle.Uncopied(k.V), "; ")
	}
	p := r.frozenProblem(s)
	if p == nil {
		p = r.Mirror.UnwrittenProblem(s)
	} else if !ok { // its own record cannot be read
		st.ServiceKey, st.Instances, st.Seen, ok = s, []pando.InstanceStatus{}, r.Mirror.World.Seen, true
		st.Phase = pando.ServiceDegraded
	}
	if ok && p != nil {
		st.Problem, st.Reason = p, strings.TrimPrefix(st.Reason+"; "+p.Reason, "; ")
	}
	return st, ok
}

// recorded returns the status of a service as the store has it. The caller holds the lock.
func (r *Reader) recorded(s pando.ServiceKey) (pando.ServiceStatus, bool) {
	v, ok := r.Mirror.World.Services[s]
	if !ok {
		return pando.ServiceStatus{}, false
	}
	spec, _ := r.Mirror.World.SpecOf(s, v.V.Target)
	st := pando.ServiceStatus{
		Service: v.V, DNS: string(s.Name) + ".pando", Ports: spec.Ports, Scale: spec.Scale,
		Instances: []pando.InstanceStatus{}, Version: v.Modified, Seen: r.Mirror.World.Seen,
	}
	if v.V.VIP4.IsValid() {
		st.VIP = v.V.VIP4.String()
	}
	if s.Tenant != pando.DefaultTenant {
		st.DNS = string(s.Name) + "." + string(s.Tenant) + ".pando"
	}
	for _, i := range append(r.Mirror.World.Of(s), world.RunsOf(r.Mirror.World, s)...) {
		is := pando.InstanceStatus{Instance: i}
		if _, here := r.Mirror.World.Hosts[i.Host]; !here && len(r.Mirror.World.Members) > 0 {
			is.Away = awayNote(r.Mirror.Left, i.Host)
		}
		is.Waits = cmp.Or(is.Waits, waitOf(r.Mirror.World, v.V, i))
		if i.IP4.IsValid() && len(spec.Ports) > 0 && i.Run == nil {
			is.Endpoint = netip.AddrPortFrom(i.IP4, spec.Ports[0].Target).String()
		}
		st.Instances = append(st.Instances, is)
	}
	if waits := pando.DrainsOf(st.Instances); waits != "" {
		st.Reason = strings.TrimPrefix(st.Reason+"; "+waits, "; ")
	}
	all := decide.OnLiveHosts(r.Mirror.World, r.Mirror.World.Of(s))
	if why := caveats(r.Mirror.World, v.V, spec, scale.Capacity(all)); why != "" {
		st.Reason = strings.TrimPrefix(st.Reason+"; "+why, "; ")
	}
	st.InRotation = scale.CountOf(all).InRotation
	decisions := r.Mirror.World.DecisionsOf(s)
	st.Problem, st.Failures = decide.Problem(v.V, decisions), decide.Failures(decisions)
	return st, true
}

// waitOf returns what an instance waits for that is to be replaced, or "".
func waitOf(w *world.World, svc pando.Service, i pando.Instance) string {
	if !i.Phase.TakesFlows() || i.Warm {
		return ""
	}
	what, end := "", ""
	switch {
	case decide.IsRestarted(w, svc, i):
		what, end = "waits to be restarted", fmt.Sprintf("`pando restart %s --cancel`", svc.ServiceKey)
	case decide.Drained(w, i.Host):
		what = "waits to leave its host, which is drained"
		end = fmt.Sprintf("`pando hosts undrain %s`", i.Host)
	default:
		return ""
	}
	if strings.Contains(svc.Reason, decide.ReplacementFails) {
		return fmt.Sprintf("%s: %s; %s ends that", what, decide.ReplacementFails, end)
	}
	return what
}

// frozenProblem returns the problem that a record of a service cannot be read, or nil. The caller
// holds the lock.
func (r *Reader) frozenProblem(s pando.ServiceKey) *pando.Decision {
	err := r.Mirror.World.Frozen(s)
	if err == nil {
		err = r.Mirror.OnFrozenHost(s)
	}
	if err == nil {
		return nil
	}
	return &pando.Decision{
		Service: s, Kind: pando.DecidedFrozen, By: decide.Self, At: r.Mirror.Clock.Now(), Reason: err.Error(),
	}
}

// Revisions implements pando.Operators.
func (r *Reader) Revisions(_ context.Context, s pando.ServiceKey) ([]pando.Revision, error) {
	r.Mirror.Mu.Lock()
	defer r.Mirror.Mu.Unlock()
	if _, ok := r.Mirror.World.Services[s]; !ok {
		return nil, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	return RevisionsOf(r.Mirror.World, s), nil
}

// RevisionsOf returns the stored revisions of a service, oldest first.
func RevisionsOf(w *world.World, s pando.ServiceKey) []pando.Revision {
	all := w.Revisions[s]
	out := make([]pando.Revision, 0, len(all))
	for _, n := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[n].V)
	}
	return out
}
