package steering

import (
	"net/netip"
	"slices"
	"testing"

	"pando.run/pando/edge"
)

// allShares is every VIP.
var allShares = func() (s edge.Shares) {
	for n := range edge.VIPShares {
		s.Add(n)
	}
	return s
}()

// book returns the connection table of a host.
func book(t *testing.T, h *host) edge.FlowBook {
	t.Helper()
	b, ok := h.Subject.(edge.FlowBook)
	if !ok {
		t.Skip("the driver has no connection table to fill")
	}
	return b
}

// aTakerLearnsFlows makes a host learn the flows of another host's instances, as before it answers
// for a VIP. It believes no report that cannot be, and changes no entry of its own instances.
func aTakerLearnsFlows(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish()
	near, far, taker := book(t, e.hosts[0]), book(t, e.hosts[1]), book(t, e.hosts[2])
	for six := range 2 {
		e.dial("outside", six).who(t)
	}
	e.dial("h2", 0).who(t)
	report := func(b edge.FlowBook, s edge.Shares) (all []edge.InstanceFlows) {
		all, err := b.OpenFlows(t.Context(), s)
		check(t, err)
		return all
	}
	flows := report(far, allShares)
	if len(flows) != 1 || flows[0].Instance != "b" || flows[0].Service != web ||
		len(flows[0].Flows) != 3 {
		t.Fatalf("the host of b reports %+v", flows)
	}
	if more := report(near, allShares); len(more) != 0 {
		t.Errorf("the ingress reports flows of other hosts' instances: %+v", more)
	}
	var other edge.Shares
	other.Add(edge.VIPShare(vip[0]) + 1)
	if none := report(far, other); len(none) != 0 {
		t.Errorf("other VIPs have the flows %+v", none)
	}
	learn := func(all ...edge.InstanceFlows) (n int) {
		check(t, e.hosts[2].inside(func() (err error) {
			n, err = taker.LearnFlows(t.Context(), all)
			return err
		}))
		return n
	}
	if n := learn(flows...); n != 3 {
		t.Errorf("it learned %d of 3 flows", n)
	}
	if n := learn(flows...); n != 0 {
		t.Errorf("it learned %d known flows", n)
	}
	if n := e.hosts[1].flows(t, "b"); n != 3 {
		t.Errorf("the host of b has %d flows, want 3", n)
	}
	if n := learn(hostileFlows(flows[0])...); n != 0 {
		t.Errorf("it learned %d flows that cannot be", n)
	}
}

// hostileFlows returns reports that no honest host sends.
func hostileFlows(one edge.InstanceFlows) (all []edge.InstanceFlows) {
	for _, f := range []func(*edge.InstanceFlows, *edge.OpenFlow){
		func(i *edge.InstanceFlows, _ *edge.OpenFlow) { i.Service.Name = "other" },
		func(i *edge.InstanceFlows, _ *edge.OpenFlow) { i.Instance = "nobody" },
		func(i *edge.InstanceFlows, _ *edge.OpenFlow) { i.Instance = "c" }, // it is the taker's own
		func(_ *edge.InstanceFlows, f *edge.OpenFlow) { f.Protocol = "sctp" },
		func(_ *edge.InstanceFlows, f *edge.OpenFlow) { f.Client = netip.AddrPort{} },
		func(_ *edge.InstanceFlows, f *edge.OpenFlow) {
			f.VIP = netip.AddrPortFrom(f.VIP.Addr().Next(), 80) // of no service
		},
		func(_ *edge.InstanceFlows, f *edge.OpenFlow) {
			f.VIP = netip.MustParseAddrPort("192.0.2.7:80")
		},
	} {
		i := one
		i.Flows = slices.Clone(one.Flows)
		for n := range i.Flows {
			f(&i, &i.Flows[n])
			i.Flows[n].Client = netip.AddrPortFrom(i.Flows[n].Client.Addr(), 1) // not known yet
		}
		all = append(all, i)
	}
	return all
}
