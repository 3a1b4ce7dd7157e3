// Package ebpf steers flows with tcx programs that need no process. A connection table serves known
// flows, and a weighted Maglev table places new ones. No address is rewritten: each instance
// answers for its service's VIP itself.
//
// It never decides which instances take flows: it publishes the tables it is given. Everything is
// pinned, so that traffic continues without the agent.
package ebpf

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
	"pando.run/pando/edge"
)

var _ pando.Steering = (*Driver)(nil)

// Config configures the steering of one host.
type Config struct {
	PinDir   string     // a folder of a bpffs, for this host alone
	Uplinks  []string   // interfaces that receive packets for VIPs
	HostAddr netip.Addr // source of the host's own packets to VIPs; invalid: the gateway's address
	// HostAddr6 is the same for IPv6. A host without it reaches no instance of another host by IPv6.
	HostAddr6 netip.Addr
	Slot      int    // of this host, which chooses its front
	Settings  string // a file for the kernel's former settings, for Restore; "": none
	// FlowsMax is the number of held flows of IPv4; IPv6 has a quarter. 0: 1,048,576. A sixteenth of
	// it, at least 512, may be opening and guarded, and half as many unguarded.
	FlowsMax int
	// Secret is the same on all hosts of a cluster. The key of the hash is derived from it, so two
	// hosts with the same table choose the same endpoint. nil: the key is random.
	Secret []byte
	// Clsact attaches the programs as every kernel before 6.6 does (driver/network/attach).
	Clsact bool
	// Buckets fills a table with indices into ids, in proportion to weights (balance.Buckets).
	Buckets func(ids []string, weights []int, size int) []uint16
}

// Driver steers one host. Its methods may be called from any goroutine.
type Driver struct {
	Config
	*sleepers
	travels
	edge.FlowBook
	objects   steerObjects
	hooks     hooks
	flows     flowTable
	shares    *shares
	sweeping  sync.Mutex // one sweep at a time; taken before mu
	pauses    pauses     // guarded by sweeping
	mu        sync.Mutex // guards the fields below
	index     *index
	ways      ways
	netns     map[uint32]string // by slot of a published endpoint
	tables    *tables
	tunnel    tunnel
	policies  *policies
	doors     doors
	payers    *payers
	straights straights
	// drains are the slots of endpoints of this host that take no new flows.
	drains map[uint32]bool
	// evicted is the number of flows that a full table evicted, as last computed.
	evicted int
	// fresh: this Open created the connection table. filled: services with connections taken
	// over since then. filledFrom: number of connections taken over per instance.
	fresh      bool
	filled     map[pando.ServiceKey]bool
	filledFrom map[pando.InstanceID]int
}

// Open takes over the pins of a former agent without breaking a flow, or begins anew.
func Open(c Config) (*Driver, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if err := ensureBPFFS(c.PinDir); err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	tick, err := tick()
	if err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	d := &Driver{
		Config:     c,
		shares:     newShares(c.Buckets),
		ways:       ways{},
		netns:      map[uint32]string{},
		filled:     map[pando.ServiceKey]bool{},
		filledFrom: map[pando.InstanceID]int{},
	}
	d.sleepers, d.FlowBook = newSleepers(&d.objects), book{d}
	d.hooks = hooks{filepath.Join(c.PinDir, "links"), &d.objects, c.Clsact}
	d.tunnel = tunnel{objects: &d.objects, hooks: &d.hooks, rooms: map[netip.Addr]int{}}
	d.policies = newPolicies(&d.objects)
	d.doors = doors{objects: &d.objects, of: map[uint32]*places{}, noted: map[uint32]bool{}}
	d.travels = travels{&d.objects}
	d.straights, d.drains = newStraights(&d.objects), map[uint32]bool{}
	d.flows = flowTable{objects: &d.objects, counts: counters{&d.objects, cpus}, tick: tick}
	if err := d.takeUp(); err != nil {
		return nil, err
	}
	return d, nil
}

// takeUp finds or makes the tables and brings them to this build's layout. It then replaces the
// attached programs with this build's.
func (d *Driver) takeUp() error {
	at, err := pins(d.PinDir).prepare()
	if err != nil {
		return err
	}
	d.fresh = at.fresh
	spec, err := d.load(at.dir, at.from != "")
	if err != nil {
		return err
	}
	if strings.HasSuffix(at.dir, unfinished) {
		err = at.fill(spec, &d.objects, d.flows)
	}
	if err == nil {
		err = d.readTables(spec)
	}
	if err == nil {
		err = errors.Join(d.doors.read(), d.straights.read())
	}
	if err == nil {
		err = d.attachHost()
	}
	if err == nil {
		err = d.tunnel.find(d.index)
	}
	if err == nil {
		err = d.sleepers.open()
	}
	if err == nil && at.from != "" {
		err = at.copyFlows(d.flows) // the replacement of many instances' programs takes seconds
	}
	if err == nil {
		err = d.hooks.attachAgain(d.Uplinks)
	}
	if err == nil {
		err = d.straights.attach(filepath.Join(d.PinDir, socketPins))
	}
	if err == nil && at.from != "" {
		err = at.finish(d.flows, d.objects.Migrating)
	}
	if err != nil {
		err = errors.Join(err, d.Close())
	}
	return err
}

// makeHashKey derives the key of the hash from the cluster's secret. Without a secret, it makes a
// random key if there is none.
func makeHashKey(m *ebpf.Map, cluster []byte) error {
	var was, key steerHashKey
	if err := m.Lookup(uint32(0), &was); err != nil {
		return err
	}
	switch {
	case cluster != nil:
		b, err := hkdf.Key(sha256.New, cluster, nil, "pando: the hash of flows", 8)
		if err != nil {
			return err
		}
		key.Word = [2]uint32{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
	case was == (steerHashKey{}):
		key.Word = [2]uint32{secret(), secret()}
	default:
		key = was
	}
	if key == was {
		return nil
	}
	return m.Put(uint32(0), key)
}

// readTables reads the tables of a former agent.
func (d *Driver) readTables(spec *ebpf.CollectionSpec) (err error) {
	if err := makeHashKey(d.objects.HashKeys, d.Secret); err != nil {
		return fmt.Errorf("make the key of the hash: %w", err)
	}
	if d.tables, err = openTables(d.objects.Slabs, spec.Maps["slabs"].InnerMap); err != nil {
		return err
	}
	if d.index, err = readIndex(&d.objects, d.tables); err != nil {
		return err
	}
	d.payers, err = readPayers(&d.objects, d.index)
	return err
}

// secret returns a random number that is not zero.
func secret() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.NativeEndian.Uint32(b[:]) | 1
}

// load loads the programs. It finds the tables pinned in dir, or makes and pins them.
func (d *Driver) load(dir string, migrating bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, fmt.Errorf("read the steering programs: %w", err)
	}
	if err := configure(spec, d.Config, migrating); err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		if name[0] != '.' && name != "knocks" {
			m.Pinning = ebpf.PinByName
		}
	}
	if err := attach.KeepSizes(spec, dir, formerSizes...); err != nil {
		return nil, err
	}
	err = spec.LoadAndAssign(&d.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return nil, fmt.Errorf("the pinned tables in %s have other sizes: %w; `pando down --purge` "+
			"removes them", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load the steering programs (a kernel of at least 6.1 is needed): %w", err)
	}
	return spec, nil
}

// configure sets the initial values of the programs' variables, and the sizes of the tables.
func configure(spec *ebpf.CollectionSpec, c Config, migrating bool) error {
	flowsMax := c.FlowsMax
	bits := uint32(0xffffffff) << (32 - pando.VIPs4.Bits())
	net6 := words(pando.VIPs6.Addr())
	flows4, flows6 := spec.Maps["flows"].MaxEntries, spec.Maps["flows6"].MaxEntries
	if flowsMax > 0 {
		flows4, flows6 = uint32(flowsMax), uint32(max(flowsMax/4, 1))
		opening := uint32(max(flowsMax/16, 512))
		spec.Maps["flows"].MaxEntries, spec.Maps["flows6"].MaxEntries = flows4, flows6
		spec.Maps["guarded"].MaxEntries, spec.Maps["guarded6"].MaxEntries = opening, max(opening/4, 512)
		spec.Maps["opening"].MaxEntries = max(opening/2, 512)
		spec.Maps["opening6"].MaxEntries = max(opening/8, 512)
	}
	own4, own6 := c.HostAddr, c.HostAddr6
	if own4.Is6() { // the published address is of IPv6
		own4, own6 = netip.Addr{}, own4
	}
	for name, v := range map[string]any{
		"vip_net": native(pando.VIPs4.Addr()), "vip_mask": native(mask(bits)),
		"gateway":  native(pando.Gateway4),
		"vip6_net": [2]uint32(net6[:2]), "gateway6": words(pando.Gateway6),
		"migrating": map[bool]uint32{true: 1}[migrating],
		"own_addr":  words(own4), "own6_addr": words(own6),
		"own_slot": uint32(c.Slot),
		"held_max": flows4, "held6_max": flows6,
		"guarded_max": spec.Maps["guarded"].MaxEntries, "guarded6_max": spec.Maps["guarded6"].MaxEntries,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the steering programs: %w", name, err)
		}
	}
	return nil
}

// ensureBPFFS makes the folder for pins. It mounts a bpffs if there is none.
func ensureBPFFS(dir string) error {
	root := "/sys/fs/bpf"
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return fmt.Errorf("look for a bpffs: %w", err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		if err := unix.Mount("bpf", root, "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount a bpffs at %s: %w", root, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "links"), 0o700); err != nil {
		return fmt.Errorf("make a folder for pins: %w", err)
	}
	return nil
}

// attachHost makes pando0 and its routes. It attaches the programs to pando0 and to every uplink.
func (d *Driver) attachHost() error {
	dev, err := ensureDevice(d.Config)
	if err != nil {
		return fmt.Errorf("make %s: %w", Device, err)
	}
	own := dev.Attrs().Index
	err = d.hooks.attach(hostPin, attach.Place{IfIndex: own, Egress: true}, d.objects.FromHost)
	if err != nil {
		return err
	}
	for _, name := range d.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("uplink %s: %w", name, err)
		}
		pin, ifindex := uplinkPin+name, l.Attrs().Index
		err = d.hooks.attach(pin, attach.Place{IfIndex: ifindex}, d.objects.FromOutside)
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the maps and programs. The pinned ones keep steering.
func (d *Driver) Close() error {
	err := errors.Join(d.sleepers.close(), d.objects.Close())
	if d.tables != nil {
		err = errors.Join(err, d.tables.Close())
	}
	return err
}

// Purge removes every pin, every program, pando0 and the tunnel.
func (d *Driver) Purge() error { return errors.Join(d.Close(), Purge(d.PinDir)) }

// Purge removes all pins of a driver in a folder. It also removes pins that this build cannot open,
// of another layout or other sizes.
func Purge(pinDir string) error {
	errs := []error{attach.DetachAll(filepath.Join(pinDir, "links")),
		attach.DetachAll(filepath.Join(pinDir, socketPins)), os.RemoveAll(pinDir)}
	_ = os.Remove(filepath.Dir(pinDir)) // fails if another host's pins are there
	errs = append(errs, forgetRoutes())
	for _, name := range []string{Device, TunnelDevice} {
		if dev, err := netlink.LinkByName(name); err == nil {
			errs = append(errs, netlink.LinkDel(dev))
		}
	}
	return errors.Join(errs...)
}
