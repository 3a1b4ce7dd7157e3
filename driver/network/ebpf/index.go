package ebpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// index mirrors the pinned tables in memory, so that Publish does not read them back. This driver
// is their only writer.
type index struct {
	services     map[pando.ServiceKey]uint32
	keys         map[uint32]pando.ServiceKey            // of services, by number
	freeServices []uint32                               // the last one is taken first
	endpoints    map[uint32]map[pando.InstanceID]uint32 // by service
	names        map[uint32]pando.InstanceID
	// left has the former slots of instances that have another one by now, by service. A publication
	// drops them at its end. They stay here if it fails.
	left         map[uint32][]uint32
	slots        []steerEndpoint // by number
	free         []uint32        // below endpointsMax, for endpoints of this host
	freeAway     []uint32        // the others, for endpoints of other hosts
	away         aways
	ports        map[steerServiceKey]uint32
	vips         map[[4]uint32]uint32
	portsOf      map[uint32]map[steerServiceKey]bool // by service
	vipsOf       map[uint32]map[[4]uint32]bool
	translations map[uint32]map[steerPortKey]uint16 // by ifindex
}

// readIndex reads the tables. It clears endpoints that a killed writer left incomplete: an endpoint
// counts once it has both its name and its link.
func readIndex(o *steerObjects, t *tables) (*index, error) {
	x := &index{
		away:     newAways(),
		services: map[pando.ServiceKey]uint32{}, endpoints: map[uint32]map[pando.InstanceID]uint32{},
		names: map[uint32]pando.InstanceID{}, keys: map[uint32]pando.ServiceKey{},
		ports: map[steerServiceKey]uint32{}, vips: map[[4]uint32]uint32{},
		translations: map[uint32]map[steerPortKey]uint16{},
		portsOf:      map[uint32]map[steerServiceKey]bool{}, vipsOf: map[uint32]map[[4]uint32]bool{},
		left: map[uint32][]uint32{},
	}
	err := errors.Join(x.readServices(o, t), x.readEndpoints(o), x.readPorts(o))
	if err == nil {
		err = errors.Join(x.correctArrivals(o.Arrivals), x.correctAways(o.Aways))
	}
	if err != nil {
		return nil, fmt.Errorf("read the pinned tables: %w", err)
	}
	return x, nil
}

// all reads a whole array in one system call.
func all[V any](m *ebpf.Map) ([]V, error) { return first[V](m, m.MaxEntries()) }

// names reads the names of all numbers.
func names(m *ebpf.Map) (map[uint32]string, error) {
	out := map[uint32]string{}
	err := each(m, func(n uint32, v steerName) {
		if v.Used != 0 {
			out[n] = textOf(v)
		}
	})
	return out, err
}

// readServices reads the services and the places of their tables. A record without a name was left
// by a killed writer and is cleared.
func (x *index) readServices(o *steerObjects, t *tables) error {
	named, err := names(o.ServiceNames)
	if err != nil {
		return err
	}
	services, err := all[steerService](o.Services)
	if err != nil {
		return err
	}
	for n, v := range slices.Backward(services) {
		name, ok := named[uint32(n)]
		if !ok {
			x.freeServices = append(x.freeServices, uint32(n))
			if v != (steerService{}) {
				if err := o.Services.Put(uint32(n), steerService{}); err != nil {
					return err
				}
			}
			continue
		}
		s, err := pando.ParseServiceKey(name)
		if err != nil {
			return err
		}
		if err := errors.Join(t.claim(v.Places[0]), t.claim(v.Places[1])); err != nil {
			return fmt.Errorf("the table of %s: %w", s, err)
		}
		x.services[s], x.keys[uint32(n)] = uint32(n), s
	}
	return nil
}

func (x *index) readEndpoints(o *steerObjects) error {
	named, err := names(o.EndpointNames)
	if err != nil {
		return err
	}
	if x.slots, err = all[steerEndpoint](o.Endpoints); err != nil {
		return err
	}
	for n := range slices.Backward(x.slots) {
		slot := uint32(n)
		name, ok := named[slot]
		if ok && x.slots[n].Ifindex != 0 {
			x.remember(slot, pando.InstanceID(name))
			continue
		}
		x.release(slot)
		if !ok && x.slots[n].Ifindex == 0 {
			continue
		}
		x.slots[n] = steerEndpoint{Epoch: x.slots[n].Epoch + 1}
		if err := errors.Join(
			o.Endpoints.Put(slot, x.slots[n]), ignoreMissing(o.EndpointNames.Delete(slot)),
		); err != nil {
			return err
		}
	}
	return nil
}

func (x *index) readPorts(o *steerObjects) error {
	var k steerServiceKey
	var service uint32
	ports := o.Ports.Iterate()
	for ports.Next(&k, &service) {
		x.serve(k, service)
	}
	var vip [4]uint32
	vips := o.Vips.Iterate()
	for vips.Next(&vip, &service) {
		x.answer(vip, service)
	}
	var p steerPortKey
	var other uint16
	translations := o.Translations.Iterate()
	for translations.Next(&p, &other) {
		x.translate(p, other)
	}
	return errors.Join(ports.Err(), vips.Err(), translations.Err())
}

// number returns a service's number, or assigns one.
func (x *index) number(o *steerObjects, s pando.ServiceKey) (uint32, error) {
	if n, ok := x.services[s]; ok {
		return n, nil
	}
	last := len(x.freeServices) - 1
	if last < 0 {
		return 0, fmt.Errorf("%w: %d services are steered on this host already", pando.ErrTooLarge,
			len(x.services))
	}
	n := x.freeServices[last]
	err := o.ServiceNames.Put(n, nameOf(n, string(s.Tenant)+"/"+string(s.Name)))
	if err != nil {
		return 0, err
	}
	x.freeServices, x.services[s], x.keys[n] = x.freeServices[:last], n, s
	return n, nil
}

// serve records that a service serves a port of a VIP.
func (x *index) serve(k steerServiceKey, service uint32) {
	if x.portsOf[service] == nil {
		x.portsOf[service] = map[steerServiceKey]bool{}
	}
	x.ports[k], x.portsOf[service][k] = service, true
}

// answer records the meaning of a VIP: its service, with elsewhere if another host serves it.
func (x *index) answer(vip [4]uint32, means uint32) {
	service := means &^ elsewhere
	if x.vipsOf[service] == nil {
		x.vipsOf[service] = map[[4]uint32]bool{}
	}
	x.vips[vip], x.vipsOf[service][vip] = means, true
}

// drop forgets all of a withdrawn service.
func (x *index) drop(service uint32) {
	delete(x.portsOf, service)
	delete(x.vipsOf, service)
	delete(x.endpoints, service)
	delete(x.left, service)
}

func (x *index) translate(k steerPortKey, other uint16) {
	if x.translations[k.Ifindex] == nil {
		x.translations[k.Ifindex] = map[steerPortKey]uint16{}
	}
	x.translations[k.Ifindex][k] = other
}

// name writes the name and the tag of an endpoint, which has its link by then. After an error it
// has neither, so the slot is free.
func (x *index) name(o *steerObjects, service, slot uint32, i pando.InstanceID) error {
	tag, tags := x.tagOf(service, i), o.Arrivals
	if slot >= endpointsMax {
		tags = o.Aways
	}
	err := tags.Put(tag, slot)
	if slot >= endpointsMax {
		err = ignoreFull(err)
	}
	if err != nil {
		return err
	}
	err = o.EndpointNames.Put(slot, nameOf(service, string(i)))
	if err != nil {
		err = errors.Join(err, ignoreMissing(tags.Delete(tag)))
	}
	return err
}

// remember adds an endpoint. Its slot has the number of its service.
func (x *index) remember(slot uint32, name pando.InstanceID) {
	service := x.slots[slot].Service
	if x.endpoints[service] == nil {
		x.endpoints[service] = map[pando.InstanceID]uint32{}
	}
	if was, ok := x.endpoints[service][name]; ok && was != slot {
		x.left[service] = append(x.left[service], was)
	}
	x.endpoints[service][name], x.names[slot] = slot, name
	if slot >= endpointsMax {
		x.away.note(slot, x.keys[service].Tenant)
	}
}

// forget removes an endpoint.
func (x *index) forget(slot uint32) {
	service := x.slots[slot].Service
	of := x.endpoints[service]
	if of[x.names[slot]] == slot { // else the instance has moved to another slot
		delete(of, x.names[slot])
	}
	x.left[service] = slices.DeleteFunc(x.left[service], func(n uint32) bool { return n == slot })
	if len(x.left[service]) == 0 {
		delete(x.left, service)
	}
	delete(x.names, slot)
	x.away.forget(slot)
}

// hasTag reports whether the tag of an endpoint leads to its slot. A newer slot of the same
// instance may have the tag.
func (x *index) hasTag(slot uint32) bool {
	now, ok := x.endpoints[x.slots[slot].Service][x.names[slot]]
	return !ok || now == slot || (now < endpointsMax) != (slot < endpointsMax)
}

// forgetPorts deletes the ports of a service that keep rejects.
func (x *index) forgetPorts(
	o *steerObjects, service uint32, keep func(steerServiceKey) bool,
) error {
	var errs []error
	for k := range x.portsOf[service] {
		if keep(k) {
			continue
		}
		if x.ports[k] == service { // else it is another service's by now
			errs = append(errs, ignoreMissing(o.Ports.Delete(k)))
			delete(x.ports, k)
		}
		delete(x.portsOf[service], k)
	}
	return errors.Join(errs...)
}
