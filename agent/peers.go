package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"pando.run/pando"
	"pando.run/pando/state"
)

// Applied implements pando.HostAgent. It waits until this host has seen the endpoints of services
// at a revision and the newest table of each service is in force.
func (a *Agent) Applied(
	ctx context.Context, of []pando.ServiceKey, at pando.StoreRevision,
) (missing string, err error) {
	disobeys := func(s pando.ServiceKey) bool { return !a.scope.obeys(a.records.World, s) }
	err = a.records.Wait(ctx, func() bool {
		return a.scope.seen >= at && !slices.ContainsFunc(of, disobeys)
	})
	for _, s := range of {
		if err == nil {
			err = a.queue.Wait(ctx, s)
		}
	}
	if err != nil {
		return "", err
	}
	return a.leftOut(of), nil
}

// leftOut returns what the tables of services in force leave out, or "".
func (a *Agent) leftOut(of []pando.ServiceKey) (first string) {
	more := 0
	for _, s := range of {
		if err := a.queue.Status(s).Err; err == nil || !pando.InForce(err) {
			continue
		} else if first == "" {
			first = fmt.Sprintf("%s: %v", s, err)
		} else {
			more++
		}
	}
	if more > 0 {
		first += fmt.Sprintf("; and %d more services", more)
	}
	return first
}

// Losses implements pando.HostAgent.
func (a *Agent) Losses(ctx context.Context) (pando.Losses, error) {
	l, err := a.sweeper.Losses(ctx)
	l.Unreached, l.Silent, l.Now = a.queue.Unreached(), a.crews.Silent(), a.config.Clock.Now()
	if a.config.Process.Resolvers != nil {
		l.Resolvers = a.config.Process.Resolvers()
	}
	return a.routes.Losses(a.announce.Losses(a.presence.Losses(l))), err
}

// StateLog implements pando.HostAgent.
func (a *Agent) StateLog(
	_ context.Context, s pando.ServiceKey, most int,
) ([]pando.StateCommit, error) {
	return state.Open(a.config.States.Objects, s, nil).Log(a.records.Head(s), most)
}

// State implements pando.HostAgent.
func (a *Agent) State() http.Handler {
	if a.config.States.Git == nil {
		return http.NotFoundHandler()
	}
	return a.config.States.Git(func(s pando.ServiceKey) (pando.Objects, pando.ObjectID, error) {
		head := a.records.Head(s)
		if head.IsZero() {
			return nil, head, fmt.Errorf("state of %s: %w", s, pando.ErrNotFound)
		}
		return a.config.States.Objects, head, nil
	})
}

// Aliased returns the service of a tenant that has a further name.
func (a *Agent) Aliased(t pando.Tenant, name string) (pando.ServiceKey, bool) {
	a.records.Lock()
	defer a.records.Unlock()
	return a.records.World.Aliased(t, name)
}

// VIPs returns the VIPs of a service by its name.
func (a *Agent) VIPs(
	name pando.ServiceName, tenant pando.Tenant,
) (v4, v6 netip.Addr, ok bool) {
	a.records.Lock()
	defer a.records.Unlock()
	s, ok := a.records.World.Services[pando.ServiceKey{Tenant: tenant, Name: name}]
	return s.V.VIP4, s.V.VIP6, ok
}

// HasHostAt reports whether a host of the cluster has an address.
func (a *Agent) HasHostAt(at netip.Addr) bool {
	a.records.Lock()
	defer a.records.Unlock()
	return a.records.World.HasHostAt(at)
}

// ImagesInUse returns the digests of images and bundles that a revision known to this host has.
func (a *Agent) ImagesInUse() map[string]bool {
	a.records.Lock()
	defer a.records.Unlock()
	out := map[string]bool{}
	for _, i := range a.records.World.Instances {
		if i.V.From != "" {
			out[i.V.From] = true
		}
	}
	for _, digest := range a.host.Seeds.Digests() {
		out[digest] = true
	}
	for _, revisions := range a.records.World.Revisions {
		for _, r := range revisions {
			if d := r.V.Spec.Files().Digest; d != "" {
				out[d] = true
			}
		}
	}
	return out
}
