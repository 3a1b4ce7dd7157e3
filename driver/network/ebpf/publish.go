package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

var protocols = map[pando.Protocol]uint8{pando.TCP: 6, pando.UDP: 17}

// Publish implements pando.Steering. The order of writes makes it safe under traffic, and if the
// writer is killed after any of them. An endpoint exists before a table names it, and a table is
// complete before it is active. An endpoint is removed after the active table has stopped naming
// it.
//
// An unreachable host fails its own endpoints alone: the rest is in force, and Publish returns a
// pando.UnreachedError.
func (d *Driver) Publish(_ context.Context, t pando.SteeringTable) error {
	d.mu.Lock()
	out := d.tunnel.reach(d.index, t.Endpoints)
	d.index.leaveOut(&t, out)
	d.mu.Unlock()
	if err := d.publish(t, out); err != nil {
		return fmt.Errorf("publish the steering of %s: %w", t.Service, err)
	}
	d.shares.foresee(t)
	if len(out) > 0 {
		return fmt.Errorf("publish the steering of %s: %w", t.Service, pando.Unreached(out))
	}
	return nil
}

// leaveOut gives no new flows to endpoints on hosts that are out of reach. A known one keeps its
// flows, because its host may come back.
func (x *index) leaveOut(t *pando.SteeringTable, out map[netip.Addr]error) {
	if len(out) == 0 {
		return
	}
	var known map[pando.InstanceID]uint32
	if n, ok := x.services[t.Service]; ok {
		known = x.endpoints[n]
	}
	all := make([]pando.Endpoint, 0, len(t.Endpoints))
	for _, e := range t.Endpoints {
		if out[e.Remote] != nil {
			if slot, ok := known[e.Instance]; !ok || !leadsTo(x.slots[slot], e) {
				continue
			}
			e.Weight, e.Soon, e.Silent = 0, 0, true
		}
		all = append(all, e)
	}
	t.Endpoints = all
}

// publish publishes a table. It adds the hosts to out that serve a VIP and are out of reach.
func (d *Driver) publish(t pando.SteeringTable, out map[netip.Addr]error) error {
	if len(t.Endpoints) > pando.EndpointsMax {
		return fmt.Errorf("%w: %d endpoints, at most %d", pando.ErrTooLarge, len(t.Endpoints),
			pando.EndpointsMax)
	}
	now := d.shares.of(t) // before the lock: it takes longer than the rest
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.index.number(&d.objects, t.Service)
	if err != nil {
		return err
	}
	if err := d.payers.charge(n, t.Service.Tenant); err != nil {
		return err
	}
	slots, gone, err := d.endpointSlots(n, t.Endpoints)
	if err != nil {
		return err
	}
	if err := d.doors.publish(d.index, n, t.Endpoints, slots); err != nil {
		return err
	}
	if err := d.takeOver(n, t); err != nil {
		return err
	}
	// Without an endpoint here, packets pass to another host. The way there comes before the table
	// loses its last endpoint, else a first packet in between would be refused.
	passes := len(t.Endpoints) == 0
	if passes {
		if err := d.publishPorts(n, t, out); err != nil {
			return err
		}
	}
	if err := d.publishTable(n, now, slots); err != nil {
		return err
	}
	d.shares.enforce(t.Service, now)
	if err := d.policies.publish(n, t, slots); err != nil {
		return err
	}
	if !passes {
		if err := d.publishPorts(n, t, out); err != nil {
			return err
		}
	}
	if err := d.straights.publish(d.index, n, t, slots); err != nil {
		return err
	}
	for n, e := range t.Endpoints {
		if delete(d.drains, slots[n]); e.Weight == 0 && !e.Remote.IsValid() {
			d.drains[slots[n]] = true
		}
	}
	for _, slot := range gone {
		if err := d.dropEndpoint(slot); err != nil {
			return err
		}
	}
	return d.sleepers.publish(n, t)
}

// endpointSlots writes the endpoints. It returns their slots in order, and the slots of endpoints
// that are no longer listed.
func (d *Driver) endpointSlots(service uint32, want []pando.Endpoint) (slots, gone []uint32,
	err error) {
	slots = make([]uint32, 0, len(want))
	for _, e := range want {
		slot, ok := d.index.endpoints[service][e.Instance]
		if was := d.index.slots[slot]; ok && !leadsTo(was, e) {
			switch away := e.Remote.IsValid(); {
			case away && was.Away != 0:
				err = d.index.relocate(&d.objects, slot, e)
			case away || was.Away != 0:
				// Its flows are found by their sockets (bpf/door.h), once the doors are published. The
				// slot is among those that it has left.
				ok = false
			default: // no flow can have survived a change of the link
				err, ok = d.dropEndpoint(slot), false
			}
			if err != nil {
				return nil, nil, err
			}
		}
		if !ok {
			if slot, err = d.addEndpoint(service, e); err != nil {
				return nil, nil, err
			}
		} else if err = d.index.noteSilence(&d.objects, slot, e); err != nil {
			return nil, nil, err
		}
		d.netns[slot] = e.Link.Netns
		slots = append(slots, slot)
	}
	gone = slices.Clone(d.index.left[service])
	if len(d.index.endpoints[service]) == len(slots) {
		return slots, gone, nil
	}
	for _, slot := range d.index.endpoints[service] {
		if !slices.Contains(slots, slot) {
			gone = append(gone, slot)
		}
	}
	return slots, gone, nil
}

// relocate gives a slot to an instance that has moved between two other hosts. It keeps its flows.
func (x *index) relocate(o *steerObjects, slot uint32, e pando.Endpoint) error {
	v := x.slots[slot]
	v.Remote, v.Away = words(e.Remote), awayOf(e)
	if err := o.Endpoints.Put(slot, v); err != nil {
		return err
	}
	x.slots[slot] = v
	return nil
}

// leadsTo reports whether a slot is that of an endpoint: it has the same link, or the same host.
func leadsTo(at steerEndpoint, e pando.Endpoint) bool {
	if e.Remote.IsValid() {
		return at.Away != 0 && at.Remote == words(e.Remote)
	}
	return at.Away == 0 && at.Ifindex == uint32(e.Link.IfIndex)
}

func (d *Driver) addEndpoint(service uint32, e pando.Endpoint) (uint32, error) {
	if e.Remote.IsValid() {
		return d.tunnel.add(d.index, service, e)
	}
	last := len(d.index.free) - 1
	if last < 0 {
		return 0, fmt.Errorf("%w: %d endpoints are steered to on this host already", pando.ErrTooLarge,
			len(d.index.names))
	}
	slot := d.index.free[last]
	v := steerEndpoint{Ifindex: uint32(e.Link.IfIndex), Epoch: d.index.slots[slot].Epoch + 1,
		Service: service}
	copy(v.Mac[:], e.Link.MAC)
	copy(v.HostMac[:], e.Link.HostMAC)
	err := errors.Join(
		d.policies.begin(slot),
		d.objects.Traffic.Put(slot, make([]steerCounters, d.flows.counts.cpus)),
		d.objects.Endpoints.Put(slot, v),
	)
	if err == nil {
		err = d.index.name(&d.objects, service, slot, e.Instance)
	}
	if err != nil {
		return 0, err
	}
	d.index.free, d.index.slots[slot] = d.index.free[:last], v
	d.index.remember(slot, e.Instance)
	return slot, nil
}

// dropEndpoint ends an endpoint's epoch, which makes all its flows unknown.
func (d *Driver) dropEndpoint(slot uint32) error {
	was := d.index.slots[slot]
	v := steerEndpoint{Epoch: was.Epoch + 1}
	// The slot has no link until its end. After an error the next publication drops it again.
	d.index.slots[slot] = steerEndpoint{Epoch: was.Epoch, Service: was.Service}
	errs := []error{
		d.objects.Endpoints.Put(slot, v), ignoreMissing(d.objects.EndpointNames.Delete(slot)),
		d.straights.forget(slot),
	}
	tag := d.index.tagOf(was.Service, d.index.names[slot])
	tags := d.objects.Aways
	if slot < endpointsMax {
		tags = d.objects.Arrivals
		delete(d.doors.noted, slot)
	}
	if d.index.hasTag(slot) {
		errs = append(errs, ignoreMissing(tags.Delete(tag)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	d.index.forget(slot)
	delete(d.netns, slot)
	delete(d.drains, slot)
	d.index.slots[slot] = v
	d.index.release(slot)
	return nil
}

// publishTable fills the table that is not in use, then makes it active by writing a single word.
// It does not write a share again that is in force: the table before the last change would be lost.
func (d *Driver) publishTable(service uint32, now *share, slots []uint32) error {
	if now.slots != nil && slices.Equal(now.slots, slots) {
		return nil
	}
	var s steerService
	if err := d.objects.Services.Lookup(service, &s); err != nil {
		return err
	}
	idle := (s.Active & 1) ^ 1
	was := s.Places[idle]
	place, err := d.tables.fill(was, now.buckets, slots)
	if err != nil {
		return err
	}
	s.Endpoints[idle], s.Places[idle] = min(1, uint32(len(now.buckets))), place
	if err := d.objects.Services.Put(service, s); err != nil {
		if place != was {
			d.tables.give(place) // no record names it
		}
		return err
	}
	if place != was {
		d.tables.give(was)
	}
	s.Active = idle
	if err := d.objects.Services.Put(service, s); err != nil {
		return err
	}
	now.slots = slots
	return nil
}

// publishPorts writes the ports and the VIPs of a service. It adds the host of a VIP to out that no
// route reaches.
func (d *Driver) publishPorts(
	service uint32, t pando.SteeringTable, out map[netip.Addr]error,
) error {
	want := map[steerServiceKey]bool{}
	for _, a := range vips(t) {
		for _, p := range t.Ports {
			protocol, ok := protocols[p.Protocol]
			if !ok {
				return fmt.Errorf("%w: port %d has protocol %q", pando.ErrInvalid, p.Published, p.Protocol)
			}
			want[steerServiceKey{Addr: a, Port: network(p.Published), Protocol: protocol}] = true
		}
	}
	for k := range frontKeys(t) {
		want[k] = true
	}
	for k := range want {
		if at, ok := d.index.ports[k]; ok && at == service {
			continue
		}
		if err := d.objects.Ports.Put(k, service); err != nil {
			return err
		}
		d.index.serve(k, service)
	}
	// A VIP is written after its ports: a known VIP refuses packets to unknown ports.
	for _, a := range vips(t) {
		means, via := service, t.Via4
		if !address6(a).Is4() {
			via = t.Via6
		}
		former := d.index.vips[a]&elsewhere != 0
		passes, err := d.ways.passOn(a, via, len(t.Endpoints), former)
		if isUnreached(err) {
			out[via], passes = err, false
		} else if err != nil {
			return err
		}
		if passes {
			means |= elsewhere
		}
		if at, ok := d.index.vips[a]; ok && at == means {
			continue
		}
		if err := d.objects.Vips.Put(a, means); err != nil {
			return err
		}
		d.index.answer(a, means)
	}
	return d.index.forgetPorts(&d.objects, service, func(k steerServiceKey) bool { return want[k] })
}

// frontKeys returns the keys of the ports of hosts. They are the same for the fronts of all hosts.
func frontKeys(t pando.SteeringTable) map[steerServiceKey]bool {
	out := map[steerServiceKey]bool{}
	for _, p := range t.Ports {
		if p.Host == 0 {
			continue
		}
		four, six := pando.Fronts()
		for _, a := range []netip.Addr{four, six} {
			out[steerServiceKey{Addr: words(a), Port: network(p.Host),
				Protocol: protocols[p.Protocol]}] = true
		}
	}
	return out
}

func vips(t pando.SteeringTable) (out [][4]uint32) {
	if t.VIP4.Is4() {
		out = append(out, words(t.VIP4))
	}
	if t.VIP6.Is6() {
		out = append(out, words(t.VIP6))
	}
	return out
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Withdraw implements pando.Steering.
func (d *Driver) Withdraw(_ context.Context, s pando.ServiceKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.index.services[s]
	if !ok {
		return nil
	}
	d.shares.forget(s) // the table is gone, even if the rest of this fails
	errs := []error{d.straights.forgetPorts(n, nil),
		d.index.forgetPorts(&d.objects, n, func(steerServiceKey) bool { return false })}
	for vip := range d.index.vipsOf[n] {
		if at := d.index.vips[vip]; at&^elsewhere == n {
			errs = append(errs, ignoreMissing(d.objects.Vips.Delete(vip)))
			_, err := d.ways.passOn(vip, netip.Addr{}, 0, at&elsewhere != 0)
			errs = append(errs, err)
			delete(d.index.vips, vip)
			delete(d.ways, vip)
		}
		delete(d.index.vipsOf[n], vip)
	}
	slots := slices.Collect(maps.Values(d.index.endpoints[n]))
	for _, slot := range append(slots, d.index.left[n]...) {
		errs = append(errs, d.dropEndpoint(slot))
	}
	errs = append(errs, d.tables.clear(d.objects.Services, n), d.policies.withdraw(s, n),
		d.doors.withdraw(n), d.payers.acquit(n))
	err := errors.Join(errs...)
	if err == nil { // last, because the service keeps its number until all of this is done
		err = ignoreMissing(d.objects.ServiceNames.Delete(n))
	}
	if err != nil {
		return fmt.Errorf("withdraw the steering of %s: %w", s, err)
	}
	d.sleepers.forget(n)
	d.index.drop(n)
	delete(d.index.services, s)
	delete(d.index.keys, n)
	delete(d.filled, s)
	d.index.freeServices = append(d.index.freeServices, n)
	return nil
}

// Published implements pando.Steering.
func (d *Driver) Published(context.Context) ([]pando.ServiceKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []pando.ServiceKey
	for s := range d.index.services {
		out = append(out, s)
	}
	return out, nil
}
