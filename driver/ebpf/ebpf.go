// Package ebpf steers flows with tcx programs that need no process: a connection table first, a weighted Maglev table for
// what is new, and no address rewritten (each instance answers for its service's VIP itself).
//
// It never decides who takes flows: it publishes the tables it is given. Everything is pinned, so that traffic goes on
// whatever becomes of the agent.
package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// Device is the dummy device through which the host's own packets to VIPs go.
const Device = "pando0"

const tableSlots = 16381

// Config says where to steer.
type Config struct {
	PinDir   string     // a folder of a bpffs, for this host alone
	Uplinks  []string   // interfaces at which packets for VIPs come in
	HostAddr netip.Addr // source of the host's own packets to VIPs; invalid: the gateway's address
	// Buckets fills a table: indices into ids, in proportion to weights (balance.Buckets).
	Buckets func(ids []string, weights []int, size int) []uint16
}

// Driver steers one host. Its methods may be called from any goroutine.
type Driver struct {
	Config
	objects steerObjects
	mu      sync.Mutex
	links   map[pando.InstanceID]pando.Link // of the endpoints that are published
}

// Open takes over what a former agent pinned, without breaking a flow, or begins anew.
func Open(c Config) (*Driver, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("open steering: %w", err)
	}
	if err := ensureBPFFS(c.PinDir); err != nil {
		return nil, err
	}
	d := &Driver{Config: c, links: map[pando.InstanceID]pando.Link{}}
	if err := d.load(); err != nil {
		return nil, err
	}
	if err := d.attachHost(); err != nil {
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
	bits := uint32(0xffffffff) << (32 - pando.VIPs4.Bits())
	for name, v := range map[string]uint32{"vip_net": native(pando.VIPs4.Addr()), "vip_mask": native(mask(bits)), "gateway": native(pando.Gateway4)} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the steering programs: %w", name, err)
		}
	}
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
	dev, err := ensureDevice(d.HostAddr)
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

func ensureDevice(hostAddr netip.Addr) (netlink.Link, error) {
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		if dev, err = makeDevice(); err != nil {
			return nil, err
		}
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return nil, err
	}
	gateway := &netlink.Addr{IPNet: netlink.NewIPNet(pando.Gateway4.AsSlice())}
	if err := netlink.AddrReplace(dev, gateway); err != nil {
		return nil, err
	}
	route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: prefix(pando.VIPs4), Scope: netlink.SCOPE_LINK}
	if hostAddr.Is4() {
		route.Src = hostAddr.AsSlice()
	}
	if err := netlink.RouteReplace(route); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/" + Device + "/rp_filter": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return nil, err
		}
	}
	return dev, nil
}

// makeDevice makes pando0: a dummy, or, where the kernel has none, one end of a veth pair. Nothing ever leaves it: the
// program at its egress sends every packet elsewhere. Without ARP the kernel asks nobody where a VIP is.
func makeDevice() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Device
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		if err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Device + "-end"}); err != nil {
			return nil, err
		}
		end, eerr := netlink.LinkByName(Device + "-end")
		if eerr != nil {
			return nil, eerr
		}
		err = netlink.LinkSetUp(end)
	}
	if err != nil {
		return nil, err
	}
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return nil, err
	}
	return dev, netlink.LinkSetARPOff(dev)
}

func prefix(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
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

// Connect implements pando.Steering.
func (d *Driver) Connect(_ context.Context, l pando.Link, _ []pando.Port, vip4, _ netip.Addr) error {
	v := steerInstanceLink{Addr: native(l.IP4), Vip: native(vip4)}
	copy(v.Mac[:], l.MAC)
	if err := d.objects.Links.Put(uint32(l.IfIndex), v); err != nil {
		return fmt.Errorf("remember the link %s: %w", l.Host, err)
	}
	return d.attach(l.Host, l.IfIndex, ebpf.AttachTCXIngress, d.objects.FromInstance)
}

// Disconnect implements pando.Steering.
func (d *Driver) Disconnect(_ context.Context, l pando.Link) error {
	err := d.objects.Links.Delete(uint32(l.IfIndex))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if rerr := os.Remove(filepath.Join(d.PinDir, "links", l.Host)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("forget the link %s: %w", l.Host, err)
	}
	return nil
}
