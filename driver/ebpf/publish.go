package ebpf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// Limits of the kernel's tables (bpf/pando.h).
const (
	servicesMax  = 256
	endpointsMax = 8192
)

var protocols = map[pando.Protocol]uint8{pando.TCP: 6, pando.UDP: 17}

// Publish implements pando.Steering. The order of writes is what makes it safe under traffic: endpoints are there before a
// table names them, a table is whole before it is the active one, and an endpoint goes after no table names it.
func (d *Driver) Publish(_ context.Context, t pando.SteeringTable) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.publish(t); err != nil {
		return fmt.Errorf("publish the steering of %s: %w", t.Service, err)
	}
	return nil
}

func (d *Driver) publish(t pando.SteeringTable) error {
	if len(t.Endpoints) > pando.EndpointsMax {
		return fmt.Errorf("%w: %d endpoints, at most %d", pando.ErrTooLarge, len(t.Endpoints), pando.EndpointsMax)
	}
	n, err := d.serviceNumber(t.Service)
	if err != nil {
		return err
	}
	slots, gone, err := d.endpointSlots(n, t.Endpoints)
	if err != nil {
		return err
	}
	if err := d.publishTable(n, t.Endpoints, slots); err != nil {
		return err
	}
	if err := d.publishPorts(n, t); err != nil {
		return err
	}
	for _, slot := range gone {
		if err := d.dropEndpoint(slot); err != nil {
			return err
		}
	}
	for _, e := range t.Endpoints {
		d.links[e.Instance] = e.Link
	}
	return nil
}

func textOf(n steerName) string {
	b := *(*[len(n.Text)]byte)(unsafe.Pointer(&n.Text))
	text, _, _ := bytes.Cut(b[:], []byte{0})
	return string(text)
}

func nameOf(service uint32, s string) steerName {
	n := steerName{Service: service, Used: 1}
	for i := range min(len(s), len(n.Text)-1) {
		n.Text[i] = int8(s[i])
	}
	return n
}

// serviceNumber finds a service's number, or gives it one.
func (d *Driver) serviceNumber(s pando.ServiceKey) (uint32, error) {
	text := string(s.Tenant) + "/" + string(s.Name)
	free := -1
	for n := range uint32(servicesMax) {
		var name steerName
		if err := d.objects.ServiceNames.Lookup(n, &name); err != nil {
			return 0, err
		}
		if name.Used == 1 && textOf(name) == text {
			return n, nil
		}
		if name.Used == 0 && free < 0 {
			free = int(n)
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("%w: %d services are steered on this host already", pando.ErrTooLarge, servicesMax)
	}
	return uint32(free), d.objects.ServiceNames.Put(uint32(free), nameOf(uint32(free), text))
}

// slotsOf lists the endpoints of a service, also those of a former agent, in one call to the kernel.
func (d *Driver) slotsOf(service uint32) (byName map[string]uint32, free []uint32, err error) {
	byName = map[string]uint32{}
	numbers, names := make([]uint32, endpointsMax), make([]steerName, endpointsMax)
	var cursor ebpf.MapBatchCursor
	count, err := d.objects.EndpointNames.BatchLookup(&cursor, numbers, names, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil, err
	}
	for i := range count {
		if names[i].Used == 0 {
			free = append(free, numbers[i])
		} else if names[i].Service == service {
			byName[textOf(names[i])] = numbers[i]
		}
	}
	return byName, free, nil
}

// endpointSlots writes the endpoints and returns their slots in order, and the slots of those that are no longer listed.
func (d *Driver) endpointSlots(service uint32, want []pando.Endpoint) (slots, gone []uint32, err error) {
	known, free, err := d.slotsOf(service)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range want {
		slot, ok := known[string(e.Instance)]
		delete(known, string(e.Instance))
		if !ok {
			if len(free) == 0 {
				return nil, nil, fmt.Errorf("%w: %d endpoints are steered to on this host already", pando.ErrTooLarge, endpointsMax)
			}
			slot, free = free[0], free[1:]
			if err := d.addEndpoint(service, slot, e); err != nil {
				return nil, nil, err
			}
		}
		slots = append(slots, slot)
	}
	for _, slot := range known {
		gone = append(gone, slot)
	}
	return slots, gone, nil
}

func (d *Driver) addEndpoint(service, slot uint32, e pando.Endpoint) error {
	var old steerEndpoint
	if err := d.objects.Endpoints.Lookup(slot, &old); err != nil {
		return err
	}
	v := steerEndpoint{Ifindex: uint32(e.Link.IfIndex), Epoch: old.Epoch + 1, Service: service}
	copy(v.Mac[:], e.Link.MAC)
	copy(v.HostMac[:], e.Link.HostMAC)
	zero := make([]steerCounters, ebpf.MustPossibleCPU())
	return errors.Join(
		d.objects.Traffic.Put(slot, zero),
		d.objects.Endpoints.Put(slot, v),
		d.objects.EndpointNames.Put(slot, nameOf(service, string(e.Instance))),
	)
}

// dropEndpoint makes every flow of an endpoint unknown: its epoch is over.
func (d *Driver) dropEndpoint(slot uint32) error {
	var e steerEndpoint
	if err := d.objects.Endpoints.Lookup(slot, &e); err != nil {
		return err
	}
	return errors.Join(
		d.objects.Endpoints.Put(slot, steerEndpoint{Epoch: e.Epoch + 1}),
		d.objects.EndpointNames.Put(slot, steerName{}),
	)
}

// publishTable fills the table that is not in use and makes it the active one.
func (d *Driver) publishTable(service uint32, endpoints []pando.Endpoint, slots []uint32) error {
	var s steerService
	if err := d.objects.Services.Lookup(service, &s); err != nil {
		return err
	}
	idle := (s.Active & 1) ^ 1
	ids, weights := make([]string, len(endpoints)), make([]int, len(endpoints))
	for n, e := range endpoints {
		ids[n], weights[n] = string(e.Instance), e.Weight
	}
	buckets := d.Buckets(ids, weights, tableSlots)
	s.Endpoints[idle] = 0
	if buckets != nil {
		var t steerTable
		for n, b := range buckets {
			t.Endpoint[n] = uint16(slots[b])
		}
		if err := d.objects.Tables.Put(service*2+idle, t); err != nil {
			return err
		}
		s.Endpoints[idle] = 1
	}
	s.Active = idle
	return d.objects.Services.Put(service, s)
}

// publishPorts writes what the service's addresses mean.
func (d *Driver) publishPorts(service uint32, t pando.SteeringTable) error {
	want := map[steerServiceKey]bool{}
	vip := native(t.VIP4)
	for _, p := range t.Ports {
		protocol, ok := protocols[p.Protocol]
		if !ok {
			return fmt.Errorf("%w: port %d has protocol %q", pando.ErrInvalid, p.Published, p.Protocol)
		}
		out := steerServiceKey{Addr: vip, Port: network(p.Published), Protocol: protocol}
		back := steerServiceKey{Addr: vip, Port: network(p.Target), Protocol: protocol}
		want[out] = true
		if err := errors.Join(
			d.objects.Replies.Put(back, network(p.Published)),
			d.objects.Ports.Put(out, steerServicePort{Service: service, Target: network(p.Target)}),
		); err != nil {
			return err
		}
	}
	if err := d.forgetPorts(service, func(k steerServiceKey) bool { return want[k] }); err != nil {
		return err
	}
	return d.objects.Vips.Put(vip, service)
}

// forgetPorts drops the ports of a service that are not kept.
func (d *Driver) forgetPorts(service uint32, keep func(steerServiceKey) bool) error {
	var k steerServiceKey
	var v steerServicePort
	var gone []steerServiceKey
	var targets []uint16
	it := d.objects.Ports.Iterate()
	for it.Next(&k, &v) {
		if v.Service == service && !keep(k) {
			gone, targets = append(gone, k), append(targets, v.Target)
		}
	}
	errs := []error{it.Err()}
	for n, k := range gone {
		errs = append(errs, ignoreMissing(d.objects.Ports.Delete(k)))
		k.Port = targets[n]
		errs = append(errs, ignoreMissing(d.objects.Replies.Delete(k)))
	}
	return errors.Join(errs...)
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
	published, err := d.published()
	n, ok := published[s]
	if err != nil || !ok {
		return err
	}
	errs := []error{d.forgetPorts(n, func(steerServiceKey) bool { return false })}
	var vip, service uint32
	var vips []uint32
	it := d.objects.Vips.Iterate()
	for it.Next(&vip, &service) {
		if service == n {
			vips = append(vips, vip)
		}
	}
	for _, v := range vips {
		errs = append(errs, ignoreMissing(d.objects.Vips.Delete(v)))
	}
	known, _, err := d.slotsOf(n)
	errs = append(errs, it.Err(), err)
	for _, slot := range known {
		errs = append(errs, d.dropEndpoint(slot))
	}
	errs = append(errs, d.objects.Services.Put(n, steerService{}), d.objects.ServiceNames.Put(n, steerName{}))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("withdraw the steering of %s: %w", s, err)
	}
	return nil
}

// Published implements pando.Steering.
func (d *Driver) Published(context.Context) ([]pando.ServiceKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	published, err := d.published()
	var out []pando.ServiceKey
	for s := range published {
		out = append(out, s)
	}
	return out, err
}

func (d *Driver) published() (map[pando.ServiceKey]uint32, error) {
	out := map[pando.ServiceKey]uint32{}
	var n uint32
	var name steerName
	it := d.objects.ServiceNames.Iterate()
	for it.Next(&n, &name) {
		if name.Used == 0 {
			continue
		}
		s, err := pando.ParseServiceKey(textOf(name))
		if err != nil {
			return nil, err
		}
		out[s] = n
	}
	return out, it.Err()
}
