// Package front publishes services at the hosts' own addresses. Its programs give a packet to a
// port of the host the host's front as its destination, before steering, and give a reply its own
// address back when it leaves. No process is on the way, and the client's address stays.
//
// It never chooses an instance: the front is a VIP to the steering behind it. Everything is pinned,
// so that traffic continues without the agent.
package front

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
)

// Config configures the ports of one host.
type Config struct {
	Pins    string     // a folder of a bpffs, for this package alone
	Uplinks []string   // interfaces that receive packets for the host
	Slot    int        // of the host
	Own4    netip.Addr // the host's own addresses; invalid: it has none of the family
	Own6    netip.Addr
}

// Steering is a steering that also serves at the host's own addresses.
type Steering struct {
	pando.Steering
	Config
	mu      sync.Mutex
	objects objects
	served  map[frontHostPort]frontPublished
	owners  map[uint64]pando.ServiceKey // by the number in served
	held    map[pando.HostPort]*hold
	slots   map[int]bool // of the other hosts with known addresses
}

// objects are the programs and the maps that user space needs.
type objects struct {
	ToHost    *ebpf.Program `ebpf:"to_host"`
	Leaves    *ebpf.Program `ebpf:"leaves"`
	Connects4 *ebpf.Program `ebpf:"connects4"`
	Connects6 *ebpf.Program `ebpf:"connects6"`
	HostPorts *ebpf.Map     `ebpf:"host_ports"`
	Owns      *ebpf.Map     `ebpf:"owns"`
}

var _ pando.Steering = (*Steering)(nil)

// Open puts the ports of a host before a steering. It takes over those of a former agent.
func Open(s pando.Steering, c Config) (*Steering, error) {
	f := &Steering{
		Steering: s, Config: c, served: map[frontHostPort]frontPublished{},
		owners: map[uint64]pando.ServiceKey{}, held: map[pando.HostPort]*hold{}, slots: map[int]bool{},
	}
	if err := os.MkdirAll(f.links(), 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the ports of the host: %w", err)
	}
	spec, err := loadFront()
	if err != nil {
		return nil, fmt.Errorf("read the programs of the host's ports: %w", err)
	}
	if err := configure(spec, c.Slot); err != nil {
		return nil, err
	}
	for _, name := range []string{"host_ports", "owns"} {
		spec.Maps[name].Pinning = ebpf.PinByName
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: c.Pins}}
	if err := spec.LoadAndAssign(&f.objects, options); err != nil {
		return nil, fmt.Errorf("load the programs of the host's ports (a kernel of at least 6.1 is "+
			"needed): %w", err)
	}
	if err := f.begin(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Steering) links() string { return filepath.Join(f.Pins, "links") }

// begin reads the ports of a former agent and replaces its programs.
func (f *Steering) begin() error {
	var k frontHostPort
	var v frontPublished
	all := f.objects.HostPorts.Iterate()
	for all.Next(&k, &v) {
		f.served[k] = v
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read the ports of the host: %w", err)
	}
	if err := f.objects.Owns.Put(uint32(f.Slot), ownOf(f.Own4, f.Own6)); err != nil {
		return fmt.Errorf("write the addresses of the host: %w", err)
	}
	return f.attach()
}

// configure sets the variables of the programs.
func configure(spec *ebpf.CollectionSpec, slot int) error {
	cookie, err := cookieOfNetwork()
	if err != nil {
		return fmt.Errorf("recognise the host's network: %w", err)
	}
	vip6 := words(pando.VIPs6.Addr())
	for name, v := range map[string]any{
		"vip_net": words(pando.VIPs4.Addr())[0], "vip_mask": mask(pando.VIPs4.Bits()),
		"gateway": words(pando.Gateway4)[0], "gateway6": words(pando.Gateway6),
		"vip6_net": [2]uint32(vip6[:2]), "own_slot": uint32(slot), "netns": cookie,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the programs of the host's ports: %w", name, err)
		}
	}
	return nil
}

// cookieOfNetwork returns the kernel's number of this network namespace.
func cookieOfNetwork() (uint64, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	return unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// attach runs the programs at every uplink, and ends those at other devices.
func (f *Steering) attach() error {
	wanted := map[string]bool{}
	for _, name := range f.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("uplink %s: %w", name, err)
		}
		n := l.Attrs().Index
		in := attach.Place{Pin: filepath.Join(f.links(), "in-"+name), IfIndex: n, First: true}
		out := attach.Place{Pin: filepath.Join(f.links(), "out-"+name), IfIndex: n, Egress: true}
		for at, p := range map[attach.Place]*ebpf.Program{in: f.objects.ToHost, out: f.objects.Leaves} {
			h, err := attach.Attach(at, p)
			if err != nil {
				return fmt.Errorf("attach the ports of the host at %s: %w", name, err)
			}
			if err := h.Close(); err != nil {
				return err
			}
			wanted[filepath.Base(at.Pin)] = true
		}
	}
	pins, err := os.ReadDir(f.links())
	if err != nil {
		return fmt.Errorf("look for the ports of the host: %w", err)
	}
	for _, pin := range pins {
		if !wanted[pin.Name()] && !strings.HasPrefix(pin.Name(), localPin) {
			err = errors.Join(err, attach.Detach(filepath.Join(f.links(), pin.Name())))
		}
	}
	return err
}

// Close closes the maps and the programs. The pinned ones serve on. The ports are no longer held.
func (f *Steering) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.held {
		f.release(p)
	}
	o := &f.objects
	return errors.Join(o.ToHost.Close(), o.Leaves.Close(), o.Connects4.Close(), o.Connects6.Close(),
		o.HostPorts.Close(), o.Owns.Close())
}

// Purge ends the programs and removes the pins.
func Purge(pins string) error {
	return errors.Join(attach.DetachAll(filepath.Join(pins, "links")), os.RemoveAll(pins))
}

// Publish implements pando.Steering. A port leads to the service once the service is steered. If
// another program or service has the port, the error is a pando.TakenError, and the rest is in
// force.
func (f *Steering) Publish(ctx context.Context, t pando.SteeringTable) error {
	err := f.Steering.Publish(ctx, t)
	if !pando.InForce(err) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(err, f.publish(t))
}

func (f *Steering) publish(t pando.SteeringTable) error {
	id, wanted := number(t.Service), map[frontHostPort]bool{}
	var errs, taken []error
	for _, p := range t.Ports {
		if p.Host == 0 || len(t.Endpoints) == 0 && !t.Asleep {
			continue // another host has the instances, or none
		}
		k := keyOf(pando.HostPort{Port: p.Host, Protocol: p.Protocol})
		if err := f.take(id, p); err != nil {
			taken = append(taken, err)
			continue
		}
		wanted[k], f.owners[id] = true, t.Service
		v := frontPublished{Service: id, Port: network(p.Published)}
		v.Vip[0], v.Vip[1] = words(t.VIP4), words(t.VIP6)
		if f.served[k] == v {
			continue
		}
		if err := f.objects.HostPorts.Put(k, v); err != nil {
			errs = append(errs, fmt.Errorf("publish %s at port %d of the host: %w", t.Service, p.Host, err))
			continue
		}
		f.served[k] = v
	}
	if err := errors.Join(append(errs, f.forget(id, wanted))...); err != nil {
		return err // it is not in force
	}
	return errors.Join(taken...)
}

// take holds a port of the host for a service. The caller holds the lock.
func (f *Steering) take(id uint64, p pando.Port) error {
	port := pando.HostPort{Port: p.Host, Protocol: p.Protocol}
	if at, ok := f.served[keyOf(port)]; ok && at.Service != id {
		owner := "another service"
		if s, known := f.owners[at.Service]; known {
			owner = "service " + s.String()
		}
		return &pando.TakenError{Port: port, Owner: owner}
	}
	if f.held[port] != nil {
		return nil
	}
	if owner, taken := Owner(port); taken {
		return &pando.TakenError{Port: port, Owner: owner}
	}
	f.held[port] = holdPort(port)
	return nil
}

func (f *Steering) release(p pando.HostPort) {
	f.held[p].close()
	delete(f.held, p)
}

// forget ends the ports of a service that are not wanted. The caller holds the lock.
func (f *Steering) forget(id uint64, wanted map[frontHostPort]bool) error {
	var errs []error
	for k, v := range f.served {
		if v.Service != id || wanted[k] {
			continue
		}
		if err := f.objects.HostPorts.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("end port %d of the host: %w", network(k.Port), err))
			continue
		}
		delete(f.served, k)
		f.release(portOf(k))
	}
	if len(wanted) == 0 {
		delete(f.owners, id)
	}
	return errors.Join(errs...)
}

// Withdraw implements pando.Steering.
func (f *Steering) Withdraw(ctx context.Context, s pando.ServiceKey) error {
	f.mu.Lock()
	err := f.forget(number(s), nil)
	f.mu.Unlock()
	return errors.Join(err, f.Steering.Withdraw(ctx, s))
}

// Neighbours implements pando.Steering. An instance here also answers clients that came to another
// host, from that host's address.
func (f *Steering) Neighbours(ctx context.Context, hosts []pando.Host) error {
	f.mu.Lock()
	now := map[int]bool{}
	var errs []error
	for _, h := range hosts {
		if h.Slot == f.Slot {
			continue
		}
		now[h.Slot] = true
		errs = append(errs, f.objects.Owns.Put(uint32(h.Slot), ownOf(h.Address, h.Address6)))
	}
	for slot := range f.slots {
		if !now[slot] {
			errs = append(errs, f.objects.Owns.Put(uint32(slot), frontOwn{}))
		}
	}
	f.slots = now
	f.mu.Unlock()
	return errors.Join(append(errs, f.Steering.Neighbours(ctx, hosts))...)
}

// Ports returns the ports of the host that lead to services, in order.
func (f *Steering) Ports() (out []pando.HostPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.served {
		out = append(out, portOf(k))
	}
	slices.SortFunc(out, func(a, b pando.HostPort) int {
		return strings.Compare(a.String(), b.String())
	})
	return out
}

// number returns the number of a service, the same in every life of the agent.
func number(s pando.ServiceKey) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(s.Tenant) + "/" + string(s.Name))) // it never fails
	return h.Sum64() | 1
}
