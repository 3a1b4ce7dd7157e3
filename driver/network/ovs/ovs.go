// Package ovs steers flows with Open vSwitch, by both pipelines of Fractal (§3.2): a bundle with
// learned flows, or a select group. The host's routes lead packets for VIPs to the bridge, and each
// instance has a port there. It changes flows in OpenFlow bundles.
//
// It never decides which instances take flows, and never patches the switch. test/steering lists
// the guarantees that a stock switch does not hold.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var _ pando.Steering = (*Driver)(nil)

// Bridge is the bridge of the driver, and Device its port to the host's own stack.
const (
	Bridge = "pando"
	Device = "pando0"
)

// Stack is the network stack of the host.
type Stack interface {
	// Ready gives the device pando0 its addresses and the routes to VIPs. The host then forwards.
	Ready() error
	// Connections lists the connections in a network namespace, and whether each handshake is done.
	Connections(netns string) (map[pando.Connection]bool, error)
}

// Config configures the steering of one host.
type Config struct {
	RunDir   string // of the sockets of Open vSwitch; "": RunDir
	StateDir string // a folder for records; a reboot must empty it
	PinDir   string // a folder of a bpffs
	Mode     Mode   // "": Learn
	Stack    Stack
}

// Driver steers one host. Its methods may be called from any goroutine.
type Driver struct {
	Config
	vswitch
	knocks   chan pando.ServiceKey
	mu       sync.Mutex
	host     uint16 // the port of pando0
	base     rules
	services map[pando.ServiceKey]*service
	numbers  map[uint32]pando.ServiceKey
	links    map[string]*connected // by the name of the veth
}

// Open takes over the flows of a former agent, or begins anew.
func Open(ctx context.Context, c Config) (*Driver, error) {
	if c.RunDir == "" {
		c.RunDir = RunDir
	}
	if c.Mode == "" {
		c.Mode = Learn
	}
	if err := Missing(c.RunDir); err != nil {
		return nil, err
	}
	d := &Driver{
		Config: c, vswitch: vswitch{dir: c.RunDir, bridge: Bridge},
		knocks:   make(chan pando.ServiceKey),
		services: map[pando.ServiceKey]*service{}, numbers: map[uint32]pando.ServiceKey{},
		links: map[string]*connected{},
	}
	if err := d.open(ctx); err != nil {
		return nil, fmt.Errorf("open steering by Open vSwitch: %w", err)
	}
	return d, nil
}

func (d *Driver) open(ctx context.Context) error {
	if err := errors.Join(ensureBPFFS(d.PinDir), d.recall()); err != nil {
		return err
	}
	datapath := "netdev"
	if _, err := os.Stat("/sys/module/openvswitch"); err == nil {
		datapath = "system"
	}
	note := filepath.Join(d.StateDir, switchFile)
	if err := os.WriteFile(note, []byte(d.RunDir), 0o600); err != nil {
		return fmt.Errorf("note the switch: %w", err)
	}
	// A bridge without a controller and without rules would be an ordinary switch: it fails closed.
	_, err := d.database(ctx, "--", "--may-exist", "add-br", d.bridge,
		"--", "set", "bridge", d.bridge, "fail_mode=secure", "datapath_type="+datapath,
		"--", "--may-exist", "add-port", d.bridge, Device,
		"--", "set", "interface", Device, "type=internal")
	if err != nil {
		return err
	}
	if d.host, err = d.port(ctx, Device); err != nil {
		return err
	}
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return fmt.Errorf("%w: the switch runs in another network namespace", err)
	}
	if err := netlink.LinkSetARPOff(dev); err != nil {
		return err
	}
	if err := d.Stack.Ready(); err != nil {
		return err
	}
	return d.lay(ctx, dev.Attrs().HardwareAddr)
}

// lay puts the rules of the bridge into the switch, and all others if the switch has lost them.
func (d *Driver) lay(ctx context.Context, mac net.HardwareAddr) error {
	d.base = base(d.host, mac)
	lines := rules{}.difference(d.base)
	if _, err := d.openflow(ctx, "", "set-frags", "nx-match"); err != nil {
		return err
	}
	for _, l := range d.links {
		lines = append(lines, rules{}.difference(l.Rules)...)
	}
	for _, s := range d.services {
		if s.Group != "" {
			lines = append([]string{s.Group}, lines...)
		}
		lines = append(lines, rules{}.difference(s.Rules)...)
	}
	return d.bundle(ctx, lines)
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
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for pins: %w", err)
	}
	return nil
}

// switchFile has the folder of the switch, for PurgeAll.
const switchFile = "switch"

// PurgeAll removes everything of a driver that has noted its switch in a folder. Without the folder
// it does nothing.
func PurgeAll(stateDir, pinDir string) error {
	dir, err := os.ReadFile(filepath.Join(stateDir, switchFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(err, Purge(Config{RunDir: string(dir), StateDir: stateDir, PinDir: pinDir}))
}

// Purge removes the bridge, every shadow and the records.
func (d *Driver) Purge() error { return Purge(d.Config) }

// Purge removes everything of a driver. A missing switch is no error: its bridge is gone with it.
func Purge(c Config) error {
	if c.RunDir == "" {
		c.RunDir = RunDir
	}
	var errs []error
	if Missing(c.RunDir) == nil {
		s := vswitch{dir: c.RunDir, bridge: Bridge}
		_, err := s.database(context.Background(), "--", "--if-exists", "del-br", Bridge)
		errs = append(errs, err)
	}
	links, _ := filepath.Glob(filepath.Join(c.StateDir, "links", "*"))
	for _, l := range links {
		errs = append(errs, lift(c.PinDir, shadowOf(pando.Link{Host: filepath.Base(l)})))
	}
	return errors.Join(append(errs, os.RemoveAll(c.StateDir), os.RemoveAll(c.PinDir))...)
}

// Knocks implements pando.Steering. A stock switch holds no first packet, so there is none.
func (d *Driver) Knocks() <-chan pando.ServiceKey { return d.knocks }
