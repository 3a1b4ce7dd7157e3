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
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var _ pando.Steering = (*Driver)(nil)

const tableSlots = 16381 // bpf/pando.h

// Config says where to steer.
type Config struct {
	PinDir   string     // a folder of a bpffs, for this host alone
	Uplinks  []string   // interfaces at which packets for VIPs come in
	HostAddr netip.Addr // source of the host's own packets to VIPs; invalid: the gateway's address
	FlowsMax int        // entries of the IPv4 connection table, the IPv6 one has a quarter; 0: 1,048,576
	// Buckets fills a table: indices into ids, in proportion to weights (balance.Buckets).
	Buckets func(ids []string, weights []int, size int) []uint16
}

// Driver steers one host. Its methods may be called from any goroutine.
type Driver struct {
	Config
	objects steerObjects
	cpus    int
	mu      sync.Mutex
	index   *index
	netns   map[uint32]string // of the endpoints that were published, by slot
	table   steerTable        // where the next one is put together
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
	d := &Driver{Config: c, netns: map[uint32]string{}, filled: map[pando.ServiceKey]bool{}, filledFrom: map[pando.InstanceID]int{}}
	var err error
	if d.cpus, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if err := d.load(); err != nil {
		return nil, err
	}
	if d.index, err = readIndex(&d.objects); err == nil {
		err = d.attachHost()
	}
	if err != nil {
		d.objects.Close()
		return nil, err
	}
	return d, nil
}

func (d *Driver) load() error {
	spec, err := loadSteer()
	if err != nil {
		return fmt.Errorf("read the steering programs: %w", err)
	}
	if err := d.configure(spec); err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(d.PinDir, "maps", "flows"))
	d.fresh = errors.Is(err, os.ErrNotExist)
	for name, m := range spec.Maps {
		if name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
	err = spec.LoadAndAssign(&d.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: filepath.Join(d.PinDir, "maps")}})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("the pinned tables in %s are of another layout: %w; `pando down` removes them", d.PinDir, err)
	}
	if err != nil {
		return fmt.Errorf("load the steering programs (a kernel of at least 6.6 is needed): %w", err)
	}
	return nil
}

// configure sets what the programs know from their birth.
func (d *Driver) configure(spec *ebpf.CollectionSpec) error {
	bits := uint32(0xffffffff) << (32 - pando.VIPs4.Bits())
	net6 := words(pando.VIPs6.Addr())
	for name, v := range map[string]any{
		"vip_net": native(pando.VIPs4.Addr()), "vip_mask": native(mask(bits)), "gateway": native(pando.Gateway4),
		"vip6_net": [2]uint32(net6[:2]), "gateway6": words(pando.Gateway6),
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
	for _, sub := range []string{"maps", "links"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make a folder for pins: %w", err)
		}
	}
	return nil
}

// attachHost makes pando0 and its routes, and puts the programs at it and at every uplink.
func (d *Driver) attachHost() error {
	dev, err := ensureDevice(d.HostAddr, d.Uplinks)
	if err != nil {
		return fmt.Errorf("make %s: %w", Device, err)
	}
	if err := d.attach("host", dev.Attrs().Index, ebpf.AttachTCXEgress, d.objects.FromHost); err != nil {
		return err
	}
	for _, name := range d.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("uplink %s: %w", name, err)
		}
		if err := d.attach("uplink-"+name, l.Attrs().Index, ebpf.AttachTCXIngress, d.objects.FromOutside); err != nil {
			return err
		}
	}
	return nil
}

// attach puts a program at a hook, in place of the one that a former agent put there.
func (d *Driver) attach(name string, ifindex int, where ebpf.AttachType, p *ebpf.Program) error {
	pin := filepath.Join(d.PinDir, "links", name)
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		info, err := l.Info()
		if err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == ifindex {
			err = l.Update(p)
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

// Close lets go of the maps and programs; packets go on.
func (d *Driver) Close() error { return d.objects.Close() }

// Purge removes every pin, every program and pando0.
func (d *Driver) Purge() error {
	var errs []error
	pins, _ := filepath.Glob(filepath.Join(d.PinDir, "links", "*"))
	for _, pin := range pins {
		errs = append(errs, os.Remove(pin))
	}
	errs = append(errs, d.objects.Close(), os.RemoveAll(d.PinDir))
	_ = os.Remove(filepath.Dir(d.PinDir)) // only if no other host's pins are there
	if dev, err := netlink.LinkByName(Device); err == nil {
		errs = append(errs, netlink.LinkDel(dev))
	}
	return errors.Join(errs...)
}
