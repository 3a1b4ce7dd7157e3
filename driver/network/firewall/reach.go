// Package firewall refuses new flows of instances to the parts of the network that their specs do not
// name: other tenants, the hosts and the metadata service of a cloud.
//
// Its program runs before steering, on the same links. It never decides about packets of
// established flows and about replies.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
)

// Steering is a steering with walls: it learns the owners of addresses from the tables, and puts
// up the walls of an instance before the instance is connected.
type Steering struct {
	pando.Steering
	links   string // the folder of the pinned links
	mu      sync.Mutex
	objects objects
	vips    map[pando.ServiceKey][]netip.Addr
	named   named
	hosts   map[[4]uint32]bool // the addresses of the other hosts
}

// objects are the program and the maps that user space needs.
type objects struct {
	FromWalled *ebpf.Program `ebpf:"from_walled"`
	Walls      *ebpf.Map     `ebpf:"walls"`
	Owners     *ebpf.Map     `ebpf:"owners"`
	Names      *ebpf.Map     `ebpf:"names"`
	Counts     *ebpf.Map     `ebpf:"counts"`
}

// Former builds made these tables larger, or took the memory of all their entries at once.
var formerSizes = []string{"walls", "owners"}

var _ pando.Steering = (*Steering)(nil)

// Open puts walls before a steering. pins is a folder of a bpffs. It takes over the walls of a
// former agent.
func Open(s pando.Steering, pins string) (*Steering, error) {
	w := &Steering{
		Steering: s, links: filepath.Join(pins, "links"), vips: map[pando.ServiceKey][]netip.Addr{},
	}
	if err := os.MkdirAll(w.links, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the walls of instances: %w", err)
	}
	spec, err := loadReach()
	if err != nil {
		return nil, fmt.Errorf("read the program of walls: %w", err)
	}
	if err := configure(spec); err != nil {
		return nil, err
	}
	for _, name := range []string{"walls", "owners", "names"} {
		spec.Maps[name].Pinning = ebpf.PinByName
	}
	if err := attach.KeepSizes(spec, pins, formerSizes...); err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	if err := spec.LoadAndAssign(&w.objects, options); err != nil {
		return nil, fmt.Errorf("load the program of walls (a kernel of at least 6.1 is needed): %w", err)
	}
	w.named = recall(w.objects.Names)
	w.hosts = recallHosts(w.objects.Owners)
	if err := w.replaceAll(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// configure sets the address ranges of the program.
func configure(spec *ebpf.CollectionSpec) error {
	_, six := pando.InstanceRange(0)
	instances4 := pando.Instances4
	vip6, net6 := words(pando.VIPs6.Addr()), words(six.Addr())
	for name, v := range map[string]any{
		"vip_net": words(pando.VIPs4.Addr())[0], "vip_mask": mask(pando.VIPs4.Bits()),
		"gateway": words(pando.Gateway4)[0], "gateway6": words(pando.Gateway6),
		"vip6_net":      [2]uint32(vip6[:2]),
		"instances_net": words(instances4.Addr())[0], "instances_mask": mask(instances4.Bits()),
		"instances6_net": [2]uint32(net6[:2]),
		"own_port_first": uint16(pando.OwnPortFirst), "own_port_last": uint16(pando.OwnPortLast),
		"tunnel_port": uint16(pando.TunnelPort),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the program of walls: %w", name, err)
		}
	}
	return nil
}

// Close closes the maps and the program. The pinned ones keep walls up.
func (w *Steering) Close() error {
	o := &w.objects
	return errors.Join(o.FromWalled.Close(), o.Walls.Close(), o.Owners.Close(), o.Names.Close(),
		o.Counts.Close())
}

// Prepare attaches the program to the link of a sandbox without an instance, ahead of need.
func (w *Steering) Prepare(l pando.Link) error { return w.attach(l) }

// Connect implements pando.Steering. The walls are up before the instance is connected.
func (w *Steering) Connect(ctx context.Context, l pando.Link, ports []pando.Port, vip4,
	vip6 netip.Addr) error {
	if err := w.wall(l, ports); err != nil {
		return fmt.Errorf("put up the walls of the link %s: %w", l.Host, err)
	}
	return w.Steering.Connect(ctx, l, ports, vip4, vip6)
}

func (w *Steering) wall(l pando.Link, ports []pando.Port) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	mine := owner(l.Service)
	for _, a := range []netip.Addr{l.IP4, l.IP6} {
		if !a.IsValid() {
			continue
		}
		if err := w.objects.Owners.Put(key(a), mine); err != nil {
			return err
		}
	}
	if err := w.objects.Walls.Put(uint32(l.IfIndex), walls(l, ports)); err != nil {
		return err
	}
	return w.attach(l)
}

// walls returns the entry of an instance.
func walls(l pando.Link, ports []pando.Port) reachWalled {
	mine := owner(l.Service)
	out := reachWalled{Tenant: mine.Tenant, Service: mine.Service}
	if l.IP4.IsValid() {
		out.Addr[0] = words(l.IP4)
	}
	if l.IP6.IsValid() {
		out.Addr[1] = words(l.IP6)
	}
	for word, bit := range map[pando.Reach]uint32{
		pando.ReachInternet: 1, pando.ReachTenants: 2, pando.ReachHost: 4, pando.ReachMetadata: 8,
	} {
		if (pando.Spec{Reach: l.Reach}).Reaches(word) {
			out.Reach |= bit
		}
	}
	n := 0
	for _, p := range ports {
		if p.Protocol == pando.UDP && n < len(out.Answers) {
			out.Answers[n] = network(p.Target)
			n++
		}
	}
	return out
}

// Disconnect implements pando.Steering.
func (w *Steering) Disconnect(ctx context.Context, l pando.Link) error {
	err := w.Steering.Disconnect(ctx, l)
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := []error{err}
	for _, a := range []netip.Addr{l.IP4, l.IP6} {
		if a.IsValid() {
			errs = append(errs, missingIsFine(w.objects.Owners.Delete(key(a))))
		}
	}
	errs = append(errs, missingIsFine(w.objects.Walls.Delete(uint32(l.IfIndex))),
		attach.Detach(filepath.Join(w.links, l.Host)))
	return errors.Join(errs...)
}

// Publish implements pando.Steering. The VIPs have their owner before the service is steered.
func (w *Steering) Publish(ctx context.Context, t pando.SteeringTable) error {
	if err := w.learn(t); err != nil {
		return fmt.Errorf("remember the owner of the VIPs of %s: %w", t.Service, err)
	}
	return w.Steering.Publish(ctx, t)
}

func (w *Steering) learn(t pando.SteeringTable) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := owner(t.Service)
	of.Service = 0
	var now []netip.Addr
	for _, a := range []netip.Addr{t.VIP4, t.VIP6} {
		if !a.IsValid() {
			continue
		}
		if err := w.objects.Owners.Put(key(a), of); err != nil {
			return err
		}
		now = append(now, a)
	}
	w.vips[t.Service] = now
	return w.named.set(t)
}

// Withdraw implements pando.Steering.
func (w *Steering) Withdraw(ctx context.Context, s pando.ServiceKey) error {
	if err := w.Steering.Withdraw(ctx, s); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := []error{w.named.set(pando.SteeringTable{Service: s})}
	for _, a := range w.vips[s] {
		errs = append(errs, missingIsFine(w.objects.Owners.Delete(key(a))))
	}
	delete(w.vips, s)
	return errors.Join(errs...)
}

// recallHosts returns the addresses of the other hosts that a former agent knew. Without them, the
// address of a host that left meanwhile would stay a host's.
func recallHosts(owners *ebpf.Map) map[[4]uint32]bool {
	hosts := map[[4]uint32]bool{}
	var at [4]uint32
	var o reachOwner
	for all := owners.Iterate(); all.Next(&at, &o); {
		if o == (reachOwner{}) {
			hosts[at] = true
		}
	}
	return hosts
}

// Neighbours implements pando.Steering. The addresses of other hosts are part of the word host.
func (w *Steering) Neighbours(ctx context.Context, hosts []pando.Host) error {
	w.mu.Lock()
	now := map[[4]uint32]bool{}
	var errs []error
	for _, h := range hosts {
		for _, a := range []netip.Addr{h.Address, h.Address6} {
			if a.IsValid() {
				errs = append(errs, w.objects.Owners.Put(key(a), reachOwner{}))
				now[key(a)] = true
			}
		}
	}
	for at := range w.hosts {
		if !now[at] {
			errs = append(errs, missingIsFine(w.objects.Owners.Delete(at)))
		}
	}
	w.hosts = now
	w.mu.Unlock()
	return errors.Join(append(errs, w.Steering.Neighbours(ctx, hosts))...)
}

// Refused returns the number of new flows that walls refused since the program was loaded.
func (w *Steering) Refused() (all uint64, err error) {
	var each []uint64
	if err := w.objects.Counts.Lookup(uint32(0), &each); err != nil {
		return 0, fmt.Errorf("read the count of refused flows: %w", err)
	}
	for _, n := range each {
		all += n
	}
	return all, nil
}

// attach puts the program before all others on a link.
func (w *Steering) attach(l pando.Link) error {
	h, err := attach.Attach(attach.Place{
		Pin: filepath.Join(w.links, l.Host), IfIndex: l.IfIndex, First: true,
	}, w.objects.FromWalled)
	if err != nil {
		return fmt.Errorf("attach the walls at %s: %w", l.Host, err)
	}
	return h.Close()
}

// replaceAll puts this build's program in place of a former agent's.
func (w *Steering) replaceAll() error {
	pins, err := os.ReadDir(w.links)
	if err != nil {
		return fmt.Errorf("look for walls: %w", err)
	}
	var errs []error
	for _, pin := range pins {
		errs = append(errs, attach.Replace(filepath.Join(w.links, pin.Name()), w.objects.FromWalled))
	}
	return errors.Join(errs...)
}

// owner returns the numbers of a service and its tenant. They are the same in every life of the
// agent.
func owner(s pando.ServiceKey) reachOwner {
	number := func(text string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(text)) // it never fails
		return h.Sum64() | 1
	}
	return reachOwner{
		Tenant: number(string(s.Tenant)), Service: number(string(s.Tenant) + "/" + string(s.Name)),
	}
}

func missingIsFine(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
