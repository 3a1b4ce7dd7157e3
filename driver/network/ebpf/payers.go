package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// payers charges held flows to the tenants of their services. A tenant has a number of this host
// while it has a service here, at most one number per service (bpf/held.h).
type payers struct {
	objects *steerObjects
	of      map[uint32]uint32       // by service
	numbers map[pando.Tenant]uint32 // from 1
	names   map[uint32]pando.Tenant // by number
}

// readPayers gives each service its tenant. A build without tenants, or a killed writer, left
// services without one.
func readPayers(o *steerObjects, x *index) (*payers, error) {
	p := &payers{o, map[uint32]uint32{}, map[pando.Tenant]uint32{}, map[uint32]pando.Tenant{}}
	before, err := all[uint32](o.Tenants)
	if err != nil {
		return nil, fmt.Errorf("read the tenants of services: %w", err)
	}
	for service, n := range before {
		key, ok := x.keys[uint32(service)]
		if n == 0 || ok && p.claim(uint32(service), n, key.Tenant) {
			continue
		}
		if err := o.Tenants.Put(uint32(service), uint32(0)); err != nil {
			return nil, err
		}
	}
	for service, key := range x.keys {
		if err := p.charge(service, key.Tenant); err != nil {
			return nil, err
		}
	}
	return p, p.correct()
}

// claim records a pinned number and reports whether it belongs to the tenant.
func (p *payers) claim(service, n uint32, t pando.Tenant) bool {
	number, ok := p.numbers[t]
	if name, taken := p.names[n]; ok && number != n || taken && name != t || n > pando.ServicesMax {
		return false
	}
	p.of[service], p.numbers[t], p.names[n] = n, n, t
	return true
}

// charge makes a tenant pay for the held flows of a service.
func (p *payers) charge(service uint32, t pando.Tenant) error {
	if _, ok := p.of[service]; ok {
		return nil
	}
	n, ok := p.numbers[t]
	if !ok {
		for n = 1; p.names[n] != ""; n++ {
		}
		if err := p.reset(n); err != nil { // a killed writer may have left it
			return err
		}
	}
	if err := p.objects.Tenants.Put(service, n); err != nil {
		return err
	}
	p.of[service], p.numbers[t], p.names[n] = n, n, t
	return nil
}

// acquit ends the payments for a service that is withdrawn.
func (p *payers) acquit(service uint32) error {
	n, ok := p.of[service]
	if !ok {
		return nil
	}
	if err := p.objects.Tenants.Put(service, uint32(0)); err != nil {
		return err
	}
	delete(p.of, service)
	for _, other := range p.of {
		if other == n {
			return nil
		}
	}
	delete(p.numbers, p.names[n])
	delete(p.names, n)
	return p.reset(n)
}

// reset clears the flows of a number that no tenant has.
func (p *payers) reset(n uint32) error {
	return errors.Join(
		p.objects.TenantHeld.Put(2*n, int64(0)), p.objects.TenantHeld.Put(2*n+1, int64(0)),
		p.objects.TenantGuarded.Put(2*n, int32(0)), p.objects.TenantGuarded.Put(2*n+1, int32(0)))
}

// correct sets the held flows of each tenant to the sum of its services. They differ after an
// upgrade from a build without tenants, and after a service was withdrawn. A flow that begins
// or ends meanwhile may count either way until the next sweep.
func (p *payers) correct() error {
	services, tenants := uint32(0), uint32(0)
	for service, n := range p.of {
		services, tenants = max(services, service+1), max(tenants, n+1)
	}
	before, err := first[int64](p.objects.TenantHeld, 2*tenants)
	if err != nil {
		return fmt.Errorf("read the held flows of tenants: %w", err)
	}
	held, err := first[uint64](p.objects.Held, 2*services)
	if err != nil {
		return fmt.Errorf("read the held flows of services: %w", err)
	}
	off := make([]int64, 2*tenants)
	for service, n := range p.of {
		for six := range uint32(2) {
			off[2*n+six] += int64(held[2*service+six])
		}
	}
	for k, want := range off {
		if want == before[k] {
			continue
		}
		var now int64
		if err := p.objects.TenantHeld.Lookup(uint32(k), &now); err != nil {
			return err
		}
		if err := p.objects.TenantHeld.Put(uint32(k), now+want-before[k]); err != nil {
			return err
		}
	}
	return nil
}

// openings counts the opening flows of a walk over the table: the guarded ones by service and
// family, and the others.
type openings struct {
	guarded   map[[2]uint32]int32
	unguarded int
}

func (o *openings) count(e entry) {
	switch {
	case e.guarded:
		if o.guarded == nil {
			o.guarded = map[[2]uint32]int32{}
		}
		o.guarded[[2]uint32{e.flow.Service, familyOf(e)}]++
	case !e.held:
		o.unguarded++
	}
}

func familyOf(e entry) uint32 {
	if e.client.Addr().Is6() {
		return 1
	}
	return 0
}

// guarded returns the numbers of guarded flows, of all services and of each tenant (bpf/maps.h).
func (p *payers) guarded() ([]int32, error) {
	tenants := uint32(1)
	for n := range p.names {
		tenants = max(tenants, n+1)
	}
	out, err := first[int32](p.objects.TenantGuarded, 2*tenants)
	if err != nil {
		return nil, fmt.Errorf("read the guarded flows of tenants: %w", err)
	}
	return out, nil
}

// correctGuarded adds the error of the numbers at the start of a walk over the table: the flows
// found, less their former number.
func (p *payers) correctGuarded(before []int32, found openings) error {
	off := make([]int32, len(before))
	for k, n := range found.guarded {
		off[k[1]] += n
		if at := 2*p.of[k[0]] + k[1]; at > 1 && int(at) < len(off) {
			off[at] += n
		}
	}
	for k, want := range off {
		if want == before[k] {
			continue
		}
		var now int32
		if err := p.objects.TenantGuarded.Lookup(uint32(k), &now); err != nil {
			return err
		}
		if err := p.objects.TenantGuarded.Put(uint32(k), now+want-before[k]); err != nil {
			return err
		}
	}
	return nil
}

// first reads the first entries of an array in one system call.
func first[V any](m *ebpf.Map, size uint32) ([]V, error) {
	if size == 0 {
		return nil, nil
	}
	numbers, values := make([]uint32, size), make([]V, size)
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
