package ebpf

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"pando.run/pando"
	"pando.run/pando/edge"
)

var _ edge.FlowBook = (*Driver)(nil)

// learnAtOnce bounds the flows that are learned under the driver's lock. A publication waits for
// that time.
const learnAtOnce = 1024

// book is the connection table of a driver for other hosts.
type book struct{ *Driver }

// OpenFlows implements edge.FlowBook. It reads the table without the driver's lock.
func (d book) OpenFlows(_ context.Context, s edge.Shares) ([]edge.InstanceFlows, error) {
	d.mu.Lock()
	slots, names := slices.Clone(d.index.slots), maps.Clone(d.index.names)
	keys := maps.Clone(d.index.keys)
	d.mu.Unlock()
	found := map[uint32]*edge.InstanceFlows{}
	left := edge.OpenFlowsMax
	err := d.flows.each(func(e entry) {
		at := e.flow.Endpoint % uint32(len(slots))
		if left == 0 || !s.Has(edge.VIPShare(e.vip.Addr())) || lost(slots, e.flow) ||
			slots[at].Away != 0 {
			return
		}
		of := found[at]
		if of == nil {
			of = &edge.InstanceFlows{Service: keys[e.flow.Service], Instance: names[at]}
			found[at] = of
		}
		protocol := pando.TCP
		if e.protocol == protocols[pando.UDP] {
			protocol = pando.UDP
		}
		left--
		of.Flows = append(of.Flows, edge.OpenFlow{
			Client: e.client, VIP: e.vip, Protocol: protocol, Proven: e.held,
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the flows of this host's instances: %w", err)
	}
	out := make([]edge.InstanceFlows, 0, len(found))
	for _, at := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[at])
	}
	return out, nil
}

// LearnFlows implements edge.FlowBook. The host of an instance has its sockets, so its report
// replaces an entry that leads to another host. It never replaces an entry of an instance here.
func (d book) LearnFlows(_ context.Context, all []edge.InstanceFlows) (added int, err error) {
	now, err := d.flows.now()
	if err != nil {
		return 0, err
	}
	for _, of := range all {
		for some := range slices.Chunk(of.Flows, learnAtOnce) {
			n, err := d.learn(of.Service, of.Instance, some, now)
			added += n
			if err != nil {
				return added, fmt.Errorf("learn the flows of %s: %w", of.Instance, err)
			}
		}
	}
	return added, nil
}

// learn adds flows of one instance. The instance may be unknown: then a later table has it.
func (d book) learn(
	s pando.ServiceKey, i pando.InstanceID, flows []edge.OpenFlow, now uint32,
) (added int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	service, ok := d.index.services[s]
	if !ok {
		return 0, nil
	}
	slot, ok := d.index.endpoints[service][i]
	if !ok || d.index.slots[slot].Away == 0 {
		return 0, nil
	}
	for _, f := range flows {
		protocol, ok := protocols[f.Protocol]
		at, known := d.index.vips[words(f.VIP.Addr())]
		if !ok || !known || at&^elsewhere != service || !sound(f) {
			continue
		}
		e := entry{client: f.Client, vip: f.VIP, protocol: protocol}
		e.flow = steerFlow{
			Endpoint: slot, Epoch: d.index.slots[slot].Epoch, Service: service,
			Target: network(f.VIP.Port()), Seen: uint64(now),
		}
		done, err := d.enter(e, f.Proven)
		if err != nil {
			return added, err
		}
		if done {
			added++
		}
	}
	return added, nil
}

// sound reports whether a flow of another host's report can be in this table.
func sound(f edge.OpenFlow) bool {
	client, vip := f.Client.Addr(), f.VIP.Addr()
	if !client.IsValid() || client.Zone() != "" || client.Is4In6() || client.Is4() != vip.Is4() {
		return false
	}
	return pando.VIPs4.Contains(vip) || pando.VIPs6.Contains(vip)
}

// enter adds a flow to an endpoint of another host, and reports whether the table changed. The
// caller holds the lock.
func (d book) enter(e entry, proven bool) (bool, error) {
	was, ok, err := d.flows.find(e)
	if err != nil {
		return false, err
	}
	if ok && !lost(d.index.slots, was) {
		same := was.Endpoint == e.flow.Endpoint && was.Epoch == e.flow.Epoch
		if same || d.index.slots[was.Endpoint].Away == 0 {
			return false, nil
		}
	}
	if ok {
		old := e
		old.flow = was
		if gone, err := d.flows.order(orderForget, old); err != nil || !gone {
			return false, err // a packet has just used it
		}
	}
	return true, d.flows.take(e, proven, 0)
}

// find returns the flow with the key of an entry.
func (t flowTable) find(e entry) (f steerFlow, ok bool, err error) {
	var key any = key4(e)
	tables := []*ebpf.Map{t.objects.Flows, t.objects.Guarded, t.objects.Opening}
	if e.client.Addr().Is6() {
		key, tables = key6(e), []*ebpf.Map{t.objects.Flows6, t.objects.Guarded6, t.objects.Opening6}
	}
	for _, m := range tables {
		if err := ignoreMissing(m.Lookup(key, &f)); err != nil {
			return f, false, fmt.Errorf("look a flow up: %w", err)
		}
		if f != (steerFlow{}) {
			return f, true, nil
		}
	}
	return f, false, nil
}
