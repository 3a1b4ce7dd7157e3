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
	freeServices []uint32                               // the last one is taken first
	endpoints    map[uint32]map[pando.InstanceID]uint32 // by service
	names        map[uint32]pando.InstanceID
	slots        []steerEndpoint // by number
	free         []uint32
	ports        map[steerServiceKey]uint32
	vips         map[[4]uint32]uint32
	translations map[uint32]map[steerPortKey]uint16 // by ifindex
}

// readIndex reads the tables. It clears endpoints that a killed writer left incomplete: an endpoint
// counts once it has both its name and its link.
func readIndex(o *steerObjects) (*index, error) {
	x := &index{
		services: map[pando.ServiceKey]uint32{}, endpoints: map[uint32]map[pando.InstanceID]uint32{},
		names: map[uint32]pando.InstanceID{},
		ports: map[steerServiceKey]uint32{}, vips: map[[4]uint32]uint32{},
		translations: map[uint32]map[steerPortKey]uint16{},
	}
	if err := errors.Join(x.readServices(o), x.readEndpoints(o), x.readPorts(o)); err != nil {
		return nil, fmt.Errorf("read the pinned tables: %w", err)
	}
	return x, nil
}

// all reads a whole array in one system call.
func all[V any](m *ebpf.Map) ([]V, error) {
	numbers, values := make([]uint32, m.MaxEntries()), make([]V, m.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, numbers, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, err
	}
	if n != len(values) {
		return nil, fmt.Errorf("%d of %d entries were read", n, len(values))
	}
	return values, nil
}

func (x *index) readServices(o *steerObjects) error {
	names, err := all[steerName](o.ServiceNames)
	if err != nil {
		return err
	}
	for n, name := range slices.Backward(names) {
		if name.Used == 0 {
			x.freeServices = append(x.freeServices, uint32(n))
			continue
		}
		s, err := pando.ParseServiceKey(textOf(name))
		if err != nil {
			return err
		}
		x.services[s] = uint32(n)
	}
	return nil
}

func (x *index) readEndpoints(o *steerObjects) error {
	names, err := all[steerName](o.EndpointNames)
	if err != nil {
		return err
	}
	if x.slots, err = all[steerEndpoint](o.Endpoints); err != nil {
		return err
	}
	for n, name := range slices.Backward(names) {
		slot := uint32(n)
		if name.Used != 0 && x.slots[n].Ifindex != 0 {
			x.remember(slot, pando.InstanceID(textOf(name)))
			continue
		}
		x.free = append(x.free, slot)
		if name.Used == 0 && x.slots[n].Ifindex == 0 {
			continue
		}
		x.slots[n] = steerEndpoint{Epoch: x.slots[n].Epoch + 1}
		if err := errors.Join(o.Endpoints.Put(slot, x.slots[n]),
			o.EndpointNames.Put(slot, steerName{})); err != nil {
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
		x.ports[k] = service
	}
	var vip [4]uint32
	vips := o.Vips.Iterate()
	for vips.Next(&vip, &service) {
		x.vips[vip] = service
	}
	var p steerPortKey
	var other uint16
	translations := o.Translations.Iterate()
	for translations.Next(&p, &other) {
		x.translate(p, other)
	}
	return errors.Join(ports.Err(), vips.Err(), translations.Err())
}

func (x *index) translate(k steerPortKey, other uint16) {
	if x.translations[k.Ifindex] == nil {
		x.translations[k.Ifindex] = map[steerPortKey]uint16{}
	}
	x.translations[k.Ifindex][k] = other
}

// remember and forget add and remove an endpoint. Its slot has the number of its service.
func (x *index) remember(slot uint32, name pando.InstanceID) {
	service := x.slots[slot].Service
	if x.endpoints[service] == nil {
		x.endpoints[service] = map[pando.InstanceID]uint32{}
	}
	x.endpoints[service][name], x.names[slot] = slot, name
}

func (x *index) forget(slot uint32) {
	delete(x.endpoints[x.slots[slot].Service], x.names[slot])
	delete(x.names, slot)
}
