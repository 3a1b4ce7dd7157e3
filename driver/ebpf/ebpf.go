// Package ebpf steers flows with tcx programs that need no process: a connection table first, a weighted Maglev table for
// what is new, and no address rewritten (each instance answers for its service's VIP itself).
//
// It never decides who takes flows: it publishes the tables it is given. Everything is pinned, so that traffic goes on
// whatever becomes of the agent.
package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var _ pando.Steering = (*Driver)(nil)

// Names of pinned links; those of instances are their links' own.
const (
	hostPin   = "host"
	uplinkPin = "uplink-"
)

const tableSlots = 16381 // bpf/pando.h

// Config says where to steer.
type Config struct {
	PinDir   string     // a folder of a bpffs, for this host alone
	Uplinks  []string   // interfaces at which packets for VIPs come in
	HostAddr netip.Addr // source of the host's own packets to VIPs; invalid: the gateway's address
	Settings string     // a file that notes how the kernel's settings were, for Restore; "" is none
	FlowsMax int        // entries of the IPv4 connection table, the IPv6 one has a quarter; 0: 1,048,576
	// Buckets fills a table: indices into ids, in proportion to weights (balance.Buckets).
	Buckets func(ids []string, weights []int, size int) []uint16
}

// Driver steers one host. Its methods may be called from any goroutine.
type Driver struct {
	Config
	objects  steerObjects
	cpus     int
	tick     time.Duration
	mu       sync.Mutex
	sweeping sync.Mutex // one sweep at a time; taken before mu
	index    *index
	ways     map[[4]uint32]way           // of the VIPs that were published
	netns    map[uint32]string           // of the endpoints that were published, by slot
	shares   map[pando.ServiceKey]*share // in force
	// foreseen are the shares that were computed ahead: perhaps the next.
	foreseen map[pando.ServiceKey]*share
	table    steerTable // where the next one is put together
	// fresh: the connection table was made by this Open; filled: from which services it was filled since, filledFrom: how many
	// connections of each instance were taken over.
	fresh      bool
	filled     map[pando.ServiceKey]bool
	filledFrom map[pando.InstanceID]int
}

// Open takes over what a former agent pinned, without breaking a flow, or begins anew.
func Open(c Config) (*Driver, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if err := ensureBPFFS(c.PinDir); err != nil {
		return nil, err
	}
	d := &Driver{Config: c, ways: map[[4]uint32]way{}, netns: map[uint32]string{}, shares: map[pando.ServiceKey]*share{}, foreseen: map[pando.ServiceKey]*share{}, filled: map[pando.ServiceKey]bool{}, filledFrom: map[pando.InstanceID]int{}}
	var err error
	if d.cpus, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if d.tick, err = tick(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if err := d.takeUp(); err != nil {
		return nil, err
	}
	return d, nil
}

// takeUp finds or makes the tables, brings them to this build's layout, and puts this build's programs in place of those that
// are attached.
func (d *Driver) takeUp() error {
	dir, from, err := d.prepare()
	if err != nil {
		return err
	}
	spec, err := d.load(dir, from != "")
	if err != nil {
		return err
	}
	if strings.HasSuffix(dir, unfinished) {
		err = d.fill(spec, dir, from)
	}
	if err == nil {
		d.index, err = readIndex(&d.objects)
	}
	if err == nil {
		err = d.attachHost()
	}
	if err == nil && from != "" {
		err = d.finish(spec, from)
	}
	if err != nil {
		d.objects.Close()
	}
	return err
}

// load loads the programs and makes the tables, pinned in dir, or finds them there.
func (d *Driver) load(dir string, migrating bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, fmt.Errorf("read the steering programs: %w", err)
	}
	if err := d.configure(spec, migrating); err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		if name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
	err = spec.LoadAndAssign(&d.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return nil, fmt.Errorf("the pinned tables in %s have other sizes: %w; `pando down --purge` removes them", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load the steering programs (a kernel of at least 6.6 is needed): %w", err)
	}
	return spec, nil
}

// configure sets what the programs know from their birth.
func (d *Driver) configure(spec *ebpf.CollectionSpec, migrating bool) error {
	bits := uint32(0xffffffff) << (32 - pando.VIPs4.Bits())
	net6 := words(pando.VIPs6.Addr())
	for name, v := range map[string]any{
		"vip_net": native(pando.VIPs4.Addr()), "vip_mask": native(mask(bits)), "gateway": native(pando.Gateway4),
		"vip6_net": [2]uint32(net6[:2]), "gateway6": words(pando.Gateway6),
		"migrating": map[bool]uint32{true: 1}[migrating],
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the steering programs: %w", name, err)
		}
	}
	if d.FlowsMax > 0 {
		spec.Maps["flows"].MaxEntries, spec.Maps["flows6"].MaxEntries = uint32(d.FlowsMax), uint32(max(d.FlowsMax/4, 1))
	}
	return nil
}

// ensureBPFFS makes the folder for pins, and mounts a bpffs where there is none.
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

// attachHost makes pando0 and its routes, and puts the programs at it and at every uplink.
func (d *Driver) attachHost() error {
	dev, err := ensureDevice(d.HostAddr, d.Uplinks, d.Settings)
	if err != nil {
		return fmt.Errorf("make %s: %w", Device, err)
	}
	if err := d.attach(hostPin, dev.Attrs().Index, ebpf.AttachTCXEgress, d.objects.FromHost); err != nil {
		return err
	}
	for _, name := range d.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("uplink %s: %w", name, err)
		}
		if err := d.attach(uplinkPin+name, l.Attrs().Index, ebpf.AttachTCXIngress, d.objects.FromOutside); err != nil {
			return err
		}
	}
	return d.attachAgain()
}

// attachAgain puts this build's program at every instance that a former agent connected, and takes it from what is no uplink
// any more.
func (d *Driver) attachAgain() error {
	pins, err := os.ReadDir(filepath.Join(d.PinDir, "links"))
	if err != nil {
		return fmt.Errorf("look for attached programs: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(d.PinDir, "links", pin.Name())
		uplink, ok := strings.CutPrefix(pin.Name(), uplinkPin)
		switch {
		case ok && !slices.Contains(d.Uplinks, uplink):
			err = os.Remove(path)
		case ok, pin.Name() == hostPin:
			continue
		default:
			err = replace(path, d.objects.FromInstance)
		}
		if err != nil {
			return fmt.Errorf("replace the program at %s: %w", pin.Name(), err)
		}
	}
	return nil
}

// replace puts another program at a pinned link. The link of a device that is gone goes, too.
func replace(pin string, p *ebpf.Program) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	if info, err := l.Info(); err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return l.Unpin()
	}
	return l.Update(p)
}

// attach puts a program at a hook, in place of the one that a former agent put there.
func (d *Driver) attach(name string, ifindex int, where ebpf.AttachType, p *ebpf.Program) error {
	pin := filepath.Join(d.PinDir, "links", name)
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		info, err := l.Info()
		if err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == ifindex {
			if !is(info.Program, p) {
				err = l.Update(p)
			}
			l.Close()
			if err != nil {
				return fmt.Errorf("replace the program at %s: %w", name, err)
			}
			return nil
		}
		_ = l.Unpin() // of a device that is gone
		l.Close()
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: where})
	if err != nil {
		return fmt.Errorf("attach steering at %s: %w", name, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin steering at %s: %w", name, err)
	}
	return nil
}

// is says whether a program has an id.
func is(id ebpf.ProgramID, p *ebpf.Program) bool {
	info, err := p.Info()
	if err != nil {
		return false
	}
	own, ok := info.ID()
	return ok && own == id
}

// Close lets go of the maps and programs; packets go on.
func (d *Driver) Close() error { return d.objects.Close() }

// Purge removes every pin, every program and pando0.
func (d *Driver) Purge() error { return errors.Join(d.objects.Close(), Purge(d.PinDir)) }

// Purge removes what a driver pinned in a folder, also one that this build cannot open: another layout, other sizes.
func Purge(pinDir string) error {
	var errs []error
	pins, _ := filepath.Glob(filepath.Join(pinDir, "links", "*"))
	for _, pin := range pins {
		errs = append(errs, os.Remove(pin))
	}
	errs = append(errs, os.RemoveAll(pinDir))
	_ = os.Remove(filepath.Dir(pinDir)) // only if no other host's pins are there
	errs = append(errs, forgetRoutes())
	if dev, err := netlink.LinkByName(Device); err == nil {
		errs = append(errs, netlink.LinkDel(dev))
	}
	return errors.Join(errs...)
}
