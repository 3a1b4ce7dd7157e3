package ebpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const (
	// doorHere is the first number of the endpoints of this host in the table doors (bpf/pando.h).
	doorHere = 1 << 31
	// The programs ask no more of them (bpf/door.h). Beyond that, no flow counts as unknown.
	hostsAskedMax, socketsAskedMax = 128, 64
	// ownNetns is a word of an endpoint of this host (bpf/pando.h).
	ownNetns = 2
)

// doors writes the places where the connections of a service may be. The programs ask there about a
// packet of a flow that their table lacks (bpf/door.h). The lock of the driver guards it.
type doors struct {
	objects *steerObjects
	of      map[uint32]*places // by service
	noted   map[uint32]bool    // slots of this host with a tag and a namespace
}

// places has the hosts of a service and its endpoints of this host, each by number.
type places struct {
	hosts [][4]uint32
	here  []uint32 // slots
}

// read reads the pinned table.
func (d *doors) read() error {
	found := map[uint32]map[uint32]steerDoor{}
	err := each(d.objects.Doors, func(k steerDoorKey, v steerDoor) {
		if found[k.Service] == nil {
			found[k.Service] = map[uint32]steerDoor{}
		}
		found[k.Service][k.N] = v
	})
	if err != nil {
		return fmt.Errorf("read where connections may be: %w", err)
	}
	for service, list := range found {
		p := &places{}
		for v, ok := list[0]; ok; v, ok = list[uint32(len(p.hosts))] {
			p.hosts = append(p.hosts, v.Remote)
		}
		for v, ok := list[doorHere]; ok; v, ok = list[doorHere+uint32(len(p.here))] {
			p.here = append(p.here, v.Slot)
		}
		d.of[service] = p
		if len(list) == len(p.hosts)+len(p.here) {
			continue
		}
		for n := range list { // a killed writer left a gap
			if err := d.remove(service, n); err != nil {
				return err
			}
		}
		d.of[service] = &places{}
	}
	return nil
}

func (d *doors) put(service, n uint32, v steerDoor) error {
	return d.objects.Doors.Put(steerDoorKey{Service: service, N: n}, v)
}

func (d *doors) remove(service, n uint32) error {
	return ignoreMissing(d.objects.Doors.Delete(steerDoorKey{Service: service, N: n}))
}

// publish writes the places of a service. No place is missing at any time, except a new one. If the
// table is full, the service has none: the programs then choose by the previous table.
func (d *doors) publish(x *index, service uint32, want []pando.Endpoint, slots []uint32) error {
	var hosts [][4]uint32
	var here []uint32
	seen := map[[4]uint32]bool{}
	for n, e := range want {
		if !e.Remote.IsValid() {
			if err := d.note(x, service, slots[n], e); err != nil {
				return err
			}
			here = append(here, slots[n])
		} else if at := words(e.Remote); !seen[at] {
			seen[at] = true
			hosts = append(hosts, at)
		}
	}
	p := d.of[service]
	if p == nil {
		p = &places{}
		d.of[service] = p
	}
	hosts, here = hosts[:min(len(hosts), hostsAskedMax)], here[:min(len(here), socketsAskedMax)]
	var err error
	p.hosts, err = arrange(p.hosts, hosts, func(n uint32, at [4]uint32) error {
		return d.put(service, n, steerDoor{Remote: at})
	}, func(n uint32) error { return d.remove(service, n) })
	if err == nil {
		p.here, err = arrange(p.here, here, func(n, slot uint32) error {
			return d.put(service, doorHere+n, steerDoor{Slot: slot})
		}, func(n uint32) error { return d.remove(service, doorHere+n) })
	}
	if errors.Is(err, unix.E2BIG) {
		err = d.withdraw(service)
	}
	if err != nil {
		return fmt.Errorf("write where connections may be: %w", err)
	}
	return nil
}

// arrange makes a numbered list have these members. It returns the list as it is, even after an
// error.
func arrange[T comparable](
	list, want []T, put func(uint32, T) error, remove func(uint32) error,
) ([]T, error) {
	for _, v := range want {
		if slices.Contains(list, v) {
			continue
		}
		if err := put(uint32(len(list)), v); err != nil {
			return list, err
		}
		list = append(list, v)
	}
	for n := len(list) - 1; n >= 0; n-- {
		if slices.Contains(want, list[n]) {
			continue
		}
		last := len(list) - 1
		if n != last { // the last member is there twice for a moment
			if err := put(uint32(n), list[last]); err != nil {
				return list, err
			}
			list[n] = list[last]
		}
		if err := remove(uint32(last)); err != nil {
			return list, err
		}
		list = list[:last]
	}
	return list, nil
}

// note writes the tag and the namespace of an endpoint of this host, once.
func (d *doors) note(x *index, service, slot uint32, e pando.Endpoint) error {
	if d.noted[slot] {
		return nil
	}
	v, tag := x.slots[slot], x.tagOf(service, e.Instance)
	v.Remote = [4]uint32{uint32(tag >> 32), uint32(tag)}
	if dev, err := netlink.LinkByIndex(e.Link.IfIndex); err == nil {
		v.Remote[ownNetns] = uint32(dev.Attrs().NetNsID + 1)
	} // else its sockets cannot be asked
	if err := d.objects.Endpoints.Put(slot, v); err != nil {
		return err
	}
	x.slots[slot], d.noted[slot] = v, true
	return nil
}

// withdraw removes the places of a service.
func (d *doors) withdraw(service uint32) error {
	p := d.of[service]
	if p == nil {
		return nil
	}
	var errs []error
	for n := range p.hosts {
		errs = append(errs, d.remove(service, uint32(n)))
	}
	for n := range p.here {
		errs = append(errs, d.remove(service, doorHere+uint32(n)))
	}
	delete(d.of, service)
	return errors.Join(errs...)
}

// correctAways makes the table of the tags of other hosts' endpoints agree with those endpoints.
func (x *index) correctAways(m *ebpf.Map) error {
	want := map[uint64]uint32{}
	for slot, name := range x.names {
		if slot >= endpointsMax {
			want[x.tagOf(x.slots[slot].Service, name)] = slot
		}
	}
	return correctTags(m, want)
}
