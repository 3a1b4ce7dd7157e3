package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
)

// Connect implements pando.Steering. The ports are those of the instance's own revision: two
// revisions of a service may listen at different ports.
func (d *Driver) Connect(_ context.Context, l pando.Link, ports []pando.Port, vip4,
	vip6 netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.translate(uint32(l.IfIndex), ports); err != nil {
		return fmt.Errorf("remember the ports of the link %s: %w", l.Host, err)
	}
	if err := d.objects.Links.Put(uint32(l.IfIndex), linkOf(l, vip4, vip6)); err != nil {
		return fmt.Errorf("remember the link %s: %w", l.Host, err)
	}
	err := errors.Join(d.straights.admit(l), d.straights.settle(l, d.straights.homes[l.IfIndex]))
	if err != nil {
		return err
	}
	return d.hooks.attach(l.Host, attach.Place{IfIndex: l.IfIndex}, d.objects.FromInstance)
}

// Prepare attaches the checks to the link of a sandbox that has no instance yet. Nothing passes
// there before Connect. The kernel waits for an RCU grace period (about 10 ms) per attached
// program. With Prepare, a start does not wait for it.
func (d *Driver) Prepare(l pando.Link) error {
	d.mu.Lock()
	err := d.straights.admit(l)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.hooks.attach(l.Host, attach.Place{IfIndex: l.IfIndex}, d.objects.FromInstance)
}

// The directions of a translation (enum goes of bpf/pando.h).
const (
	toTarget = iota
	toPublished
	hostToTarget
	targetToHost
)

// translate writes the port translations of an instance in both directions, and deletes its former
// ones.
func (d *Driver) translate(ifindex uint32, ports []pando.Port) error {
	want := map[steerPortKey]uint16{}
	for _, p := range ports {
		protocol, ok := protocols[p.Protocol]
		if !ok {
			return fmt.Errorf("%w: port %d has protocol %q", pando.ErrInvalid, p.Published, p.Protocol)
		}
		published, target := network(p.Published), network(p.Target)
		want[steerPortKey{Ifindex: ifindex, Port: published, Protocol: protocol}] = target
		back := steerPortKey{Ifindex: ifindex, Port: target, Protocol: protocol,
			Goes: toPublished}
		if other, ok := want[back]; ok && other != published {
			return fmt.Errorf("%w: ports %d and %d both lead to %d/%s: replies would be ambiguous; "+
				"publish one of them only",
				pando.ErrInvalid, network(other), p.Published, p.Target, p.Protocol)
		}
		want[back] = published
		if p.Host != 0 {
			atHost := network(p.Host)
			want[steerPortKey{Ifindex: ifindex, Port: atHost, Protocol: protocol,
				Goes: hostToTarget}] = target
			want[steerPortKey{Ifindex: ifindex, Port: target, Protocol: protocol,
				Goes: targetToHost}] = atHost
		}
	}
	var errs []error
	for k := range d.index.translations[ifindex] {
		if _, ok := want[k]; !ok {
			errs = append(errs, ignoreMissing(d.objects.Translations.Delete(k)))
			delete(d.index.translations[ifindex], k)
		}
	}
	for k, other := range want {
		errs = append(errs, d.objects.Translations.Put(k, other))
		d.index.translate(k, other)
	}
	return errors.Join(errs...)
}

// Disconnect implements pando.Steering.
func (d *Driver) Disconnect(_ context.Context, l pando.Link) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := []error{ignoreMissing(d.objects.Links.Delete(uint32(l.IfIndex))),
		d.translate(uint32(l.IfIndex), nil)}
	delete(d.index.translations, uint32(l.IfIndex))
	errs = append(errs, d.straights.dismiss(l),
		ignoreMissing(d.objects.Paths.Delete(uint32(l.IfIndex))))
	errs = append(errs, d.hooks.detach(l.Host))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget the link %s: %w", l.Host, err)
	}
	return nil
}
