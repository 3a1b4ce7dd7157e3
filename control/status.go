package control

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/mirror"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// statuses answers what operators ask about services.
type statuses struct{ mirror *mirror.Mirror }

// Services implements pando.Operators.
func (c *statuses) Services(context.Context) ([]pando.ServiceStatus, error) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	out := []pando.ServiceStatus{}
	for _, s := range c.mirror.World.Names() {
		if st, ok := c.status(s); ok {
			out = append(out, st)
		}
	}
	for _, s := range c.mirror.World.FrozenServices() {
		if _, listed := c.mirror.World.Services[s]; !listed {
			st, _ := c.status(s)
			out = append(out, st)
		}
	}
	return out, nil
}

// Service implements pando.Operators.
func (c *statuses) Service(_ context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	st, ok := c.status(s)
	if !ok {
		return st, fmt.Errorf("service %s: %w; `pando status` lists the services", s, pando.ErrNotFound)
	}
	if spec, ok := c.mirror.World.SpecOf(s, st.Target); ok {
		st.Spec = &spec
	}
	return st, nil
}

// status returns the stored status of a service, with the problem that one of its records cannot be
// read or its decisions cannot be written. The caller holds the lock.
func (c *statuses) status(s pando.ServiceKey) (pando.ServiceStatus, bool) {
	st, ok := c.recorded(s)
	if k, several := c.mirror.World.Keepers[s]; several {
		st.Keeper = &k.V
		st.Reason = strings.Trim(st.Reason+"; "+lifecycle.Uncopied(k.V), "; ")
	}
	p := c.frozenProblem(s)
	if p == nil {
		p = c.mirror.UnwrittenProblem(s)
	} else if !ok { // its own record cannot be read
		st.ServiceKey, st.Instances, st.Seen, ok = s, []pando.InstanceStatus{}, c.mirror.World.Seen, true
		st.Phase = pando.ServiceDegraded
	}
	if ok && p != nil {
		st.Problem, st.Reason = p, strings.TrimPrefix(st.Reason+"; "+p.Reason, "; ")
	}
	return st, ok
}

// recorded returns the status of a service as the store has it. The caller holds the lock.
func (c *statuses) recorded(s pando.ServiceKey) (pando.ServiceStatus, bool) {
	v, ok := c.mirror.World.Services[s]
	if !ok {
		return pando.ServiceStatus{}, false
	}
	spec, _ := c.mirror.World.SpecOf(s, v.V.Target)
	st := pando.ServiceStatus{
		Service: v.V, DNS: string(s.Name) + ".pando", Ports: spec.Ports, Scale: spec.Scale,
		Instances: []pando.InstanceStatus{}, Version: v.Modified, Seen: c.mirror.World.Seen,
	}
	if v.V.VIP4.IsValid() {
		st.VIP = v.V.VIP4.String()
	}
	if s.Tenant != pando.DefaultTenant {
		st.DNS = string(s.Name) + "." + string(s.Tenant) + ".pando"
	}
	for _, i := range append(c.mirror.World.Of(s), world.RunsOf(c.mirror.World, s)...) {
		is := pando.InstanceStatus{Instance: i}
		if _, here := c.mirror.World.Hosts[i.Host]; !here && len(c.mirror.World.Members) > 0 {
			is.Away = awayNote(c.mirror.Left, i.Host)
		}
		is.Waits = cmp.Or(is.Waits, waitOf(c.mirror.World, v.V, i))
		if i.IP4.IsValid() && len(spec.Ports) > 0 && i.Run == nil {
			is.Endpoint = netip.AddrPortFrom(i.IP4, spec.Ports[0].Target).String()
		}
		st.Instances = append(st.Instances, is)
	}
	if waits := pando.DrainsOf(st.Instances); waits != "" {
		st.Reason = strings.TrimPrefix(st.Reason+"; "+waits, "; ")
	}
	all := decide.OnLiveHosts(c.mirror.World, c.mirror.World.Of(s))
	if why := caveats(c.mirror.World, v.V, spec, scale.Capacity(all)); why != "" {
		st.Reason = strings.TrimPrefix(st.Reason+"; "+why, "; ")
	}
	st.InRotation = scale.CountOf(all).InRotation
	decisions := c.mirror.World.DecisionsOf(s)
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
func (c *statuses) frozenProblem(s pando.ServiceKey) *pando.Decision {
	err := c.mirror.World.Frozen(s)
	if err == nil {
		err = c.mirror.OnFrozenHost(s)
	}
	if err == nil {
		return nil
	}
	return &pando.Decision{
		Service: s, Kind: pando.DecidedFrozen, By: decide.Self, At: c.mirror.Clock.Now(), Reason: err.Error(),
	}
}
