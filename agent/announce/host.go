package announce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/edge"
)

// Host answers for VIPs on the network of one host. A host without an Announcer or without a
// segment answers for none.
type Host struct {
	flows  edge.FlowBook
	source source
	holder *Holder // nil: this host answers for none
}

// HostConfig is what the VIPs of a host need.
type HostConfig struct {
	Host pando.Host
	// Announcer answers for VIPs on the network that Host.Segment names, after Peers has asked the
	// other hosts. Nil: clients need a route to a host. Flows fills the connection table before.
	Announcer edge.Announcer
	Peers     edge.VIPPeers
	Flows     edge.FlowBook
	Records   *records.Records
	Liveness  edge.Liveness // nil: this host answers for none
	Clock     pando.Clock
	Log       *slog.Logger
}

var _ edge.VIPHolder = (*Host)(nil)

// NewHost returns the VIPs of a host. Run answers for them.
func NewHost(c HostConfig) *Host {
	h := &Host{flows: c.Flows, source: source{c.Host, c.Records, c.Liveness}}
	if c.Announcer != nil && c.Peers != nil && c.Liveness != nil && c.Host.Segment != "" {
		h.holder = New(Config{
			Own: c.Host.Name, Announcer: c.Announcer, Peers: c.Peers, Flows: c.Flows,
			Source: h.source, Clock: c.Clock, Log: c.Log,
		})
	}
	return h
}

// Run answers for VIPs until ctx ends.
func (h *Host) Run(ctx context.Context) {
	if h.holder != nil {
		h.holder.Run(ctx)
	}
}

// Shares returns the number of shares of VIPs that this host holds.
func (h *Host) Shares() int {
	if h.holder == nil {
		return 0
	}
	held, _ := h.holder.Held()
	return held.Len()
}

// GrantVIPs implements edge.VIPHolder. A host that answers for no VIP still reports the flows of
// its instances.
func (h *Host) GrantVIPs(ctx context.Context, t edge.VIPTake) (g edge.VIPGrant, err error) {
	if t.Offers {
		if h.holder != nil {
			h.holder.Offered(t)
		}
		return g, nil
	}
	if h.holder != nil {
		g.Refused = h.holder.Grant(t)
	}
	if h.flows != nil {
		g.Flows, err = h.flows.OpenFlows(ctx, t.Shares.Less(g.Refused))
	}
	return g, err
}

// Losses adds the VIPs for which this host answers to its losses.
func (h *Host) Losses(l pando.Losses) pando.Losses {
	if h.holder == nil {
		return l
	}
	held, why := h.holder.Held()
	l.Holds = held.String()
	var fours []string
	for _, vip := range h.source.VIPs(held) {
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

// source is the view of one host for its holder.
type source struct {
	own      pando.Host
	records  *records.Records
	liveness edge.Liveness
}

var _ Source = source{}

// View implements Source.
func (s source) View() View {
	v := View{Segment: s.own.Segment, Dead: map[string]bool{}}
	for _, name := range s.liveness.Dead() {
		v.Dead[string(name)] = true
	}
	s.records.Lock()
	defer s.records.Unlock()
	v.At = s.records.World.Seen
	for name, h := range s.records.World.Hosts {
		if name != s.own.Name && !s.records.IsVouched(s.records.World, h.V) {
			continue
		}
		if name != s.own.Name {
			v.Others = append(v.Others, h.V)
		}
		if h.V.Segment == v.Segment && !h.V.Leaving {
			v.Hosts = append(v.Hosts, name)
		}
	}
	slices.Sort(v.Hosts)
	return v
}

// Changed implements Source.
func (s source) Changed() <-chan struct{} { return s.liveness.Changed() }

// VIPs implements Source.
func (s source) VIPs(in edge.Shares) (all []netip.Addr) {
	s.records.Lock()
	defer s.records.Unlock()
	for _, svc := range s.records.World.Services {
		for _, vip := range []netip.Addr{svc.V.VIP4, svc.V.VIP6} {
			if vip.IsValid() && in.Has(edge.VIPShare(vip)) {
				all = append(all, vip)
			}
		}
	}
	return all
}

// HandedOver reports whether this host answers for no VIP that another host could answer for.
func (h *Host) HandedOver() bool {
	if h.holder == nil {
		return true
	}
	held, _ := h.holder.Held()
	v := h.source.View()
	heirs := slices.DeleteFunc(v.Hosts, func(name pando.HostName) bool { return v.Dead[string(name)] })
	return held.Len() == 0 || len(heirs) == 0
}
