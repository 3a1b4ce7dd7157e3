package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/agent/herald"
)

// heralding answers for VIPs on the network of this host.
type heralding struct {
	a      *Agent
	herald *herald.Herald // nil: this host answers for none
}

func newHeralding(a *Agent) *heralding {
	h := &heralding{a: a}
	if a.Announcer != nil && a.Takes != nil && a.Liveness != nil && a.Host.Segment != "" {
		h.herald = herald.New(herald.Config{
			Own: a.Host.Name, Announcer: a.Announcer, Peers: a.Takes, Flows: a.Flows,
			Source: heraldSource{a}, Clock: a.Clock, Log: a.Log,
		})
	}
	return h
}

func (h *heralding) run(ctx context.Context) {
	if h.herald != nil {
		h.herald.Run(ctx)
	}
}

// GrantVIPs implements pando.VIPHolder. A host that answers for no VIP still reports the flows of
// its instances.
func (h *heralding) GrantVIPs(ctx context.Context, t pando.VIPTake) (g pando.VIPGrant, err error) {
	if t.Offers {
		if h.herald != nil {
			h.herald.Offered(t)
		}
		return g, nil
	}
	if h.herald != nil {
		g.Refused = h.herald.Grant(t)
	}
	if h.a.Flows != nil {
		g.Flows, err = h.a.Flows.OpenFlows(ctx, t.Shares.Less(g.Refused))
	}
	return g, err
}

// losses adds the VIPs for which this host answers to its losses.
func (h *heralding) losses(l pando.Losses) pando.Losses {
	if h.herald == nil {
		return l
	}
	held, why := h.herald.Held()
	l.Holds = held.String()
	var fours []string
	for _, vip := range (heraldSource{h.a}).VIPs(held) {
		if vip.Is4() || vip.Is6() && len(fours) == 0 {
			fours = append(fours, vip.String())
		}
	}
	slices.Sort(fours)
	text := fmt.Sprintf("%d VIPs", len(fours))
	if n := len(fours); n > 0 && n <= announcedMax {
		text = strings.Join(fours, ", ")
	}
	if l.Announces = text; why != "" {
		l.Announces += " (" + why + ")"
	}
	return l
}

// announcedMax bounds the VIPs that a host's losses name.
const announcedMax = 4

// heraldSource is the view of this agent for its herald.
type heraldSource struct{ a *Agent }

var _ herald.Source = heraldSource{}

// View implements herald.Source.
func (s heraldSource) View() herald.View {
	a := s.a
	v := herald.View{Segment: a.Host.Segment, Dead: map[string]bool{}}
	for _, name := range a.Liveness.Dead() {
		v.Dead[string(name)] = true
	}
	a.records.Lock()
	defer a.records.Unlock()
	v.At = a.records.World.Seen
	for name, h := range a.records.World.Hosts {
		if name != a.Host.Name && !(tables{a}).vouched(h.V) {
			continue
		}
		if name != a.Host.Name {
			v.Others = append(v.Others, h.V)
		}
		if h.V.Segment == v.Segment && !h.V.Leaving {
			v.Hosts = append(v.Hosts, name)
		}
	}
	slices.Sort(v.Hosts)
	return v
}

// Changed implements herald.Source.
func (s heraldSource) Changed() <-chan struct{} { return s.a.Liveness.Changed() }

// VIPs implements herald.Source.
func (s heraldSource) VIPs(in pando.Shares) (all []netip.Addr) {
	s.a.records.Lock()
	defer s.a.records.Unlock()
	for _, svc := range s.a.records.World.Services {
		for _, vip := range []netip.Addr{svc.V.VIP4, svc.V.VIP6} {
			if vip.IsValid() && in.Has(pando.VIPShare(vip)) {
				all = append(all, vip)
			}
		}
	}
	return all
}

// handedOver reports whether this host answers for no VIP that another host could answer for. The
// caller does not hold the lock.
func (h *heralding) handedOver() bool {
	if h.herald == nil {
		return true
	}
	held, _ := h.herald.Held()
	v := heraldSource{h.a}.View()
	heirs := slices.DeleteFunc(v.Hosts, func(name pando.HostName) bool { return v.Dead[string(name)] })
	return held.Len() == 0 || len(heirs) == 0
}
