// Package unit starts the units of a group: processes of pando-unit, each in a network namespace
// with one device. It makes the memory that the units share, and it serves and queries control
// sockets.
//
// It never decides how many units there are. It keeps no state that outlives its process: the
// kernel ends every unit with the thread that started it.
package unit

import (
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// Config configures a Driver.
type Config struct {
	Name, Tenant string   // of the group
	Functions    []string // .wasm files, in the order in which packets pass them
	Flags        []string // additional arguments of each unit

	Devices     []string // ends of the wire
	HeaderBytes int      // size of the header that steering puts before a packet

	UnitBits uint64          // capacity of a unit in bits per second
	Limited  bool            // the capacity is also enforced
	Ports    [2]int          // first and last of the numbers that may be leased to flows
	Limits   pando.Resources // limits of each unit's process; 0 = no limit

	Gap       time.Duration // a longer silence of a flow ends a flowlet
	OutputLog bool          // the unit pando.LogUnit is an output log
	Store     string        // socket of a Redis that holds the states instead of the units
	Exchange  string        // how units exchange states: "memory" or "udp"
	Chaos     string        // LOSS,REPETITION,DISORDER in percent, for tests

	RunDir     string        // folders of the running units: sockets and logs
	DataDir    string        // meters
	Binary     string        // pando-unit
	Cgroups    pando.Cgroups // used if Limits are set
	CgroupRoot string        // mount point of the control groups
	Clock      pando.Clock
	Log        io.Writer // receives errors that affect nothing
}

// Driver starts the units of one group.
type Driver struct {
	Config
	memory    *Memory
	starter   *starter
	sockets   []*os.File // for states by UDP, one per possible unit
	addresses []string
	mtu       int // of the units' devices
}

var _ pando.Units = (*Driver)(nil)

// tagsBytes is the size of two VLAN tags. A unit's device has room for them behind the header.
const tagsBytes = 8

// Open makes the resources that all units of the group share.
func Open(c Config) (*Driver, error) {
	d := &Driver{Config: c}
	for _, device := range c.Devices {
		if l, err := netlink.LinkByName(device); err == nil {
			d.mtu = max(d.mtu, l.Attrs().MTU+c.HeaderBytes+tagsBytes)
		}
	}
	var err error
	if d.memory, err = newMemory(c.Name); err == nil {
		d.starter, err = newStarter()
	}
	if err == nil && c.Exchange == "udp" {
		err = d.openSockets()
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Memory returns the memory that the units share. It is valid until Close.
func (d *Driver) Memory() *Memory { return d.memory }

// openSockets opens a UDP socket for each possible unit. The sockets are on loopback, because all
// units are on one host.
func (d *Driver) openSockets() error {
	if lo, err := net.InterfaceByName("lo"); err == nil && lo.Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: --exchange udp needs the device lo, which is down: `ip link set lo up`",
			pando.ErrInvalid)
	}
	for range pando.UnitsMax {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return fmt.Errorf("open a socket for state between units: %w", err)
		}
		d.addresses = append(d.addresses, c.LocalAddr().String())
		f, err := c.File()
		c.Close()
		if err != nil {
			return fmt.Errorf("open a socket for state between units: %w", err)
		}
		d.sockets = append(d.sockets, f)
	}
	return nil
}

// Name implements pando.Units.
func (d *Driver) Name(id int) string {
	if d.OutputLog && id == pando.LogUnit {
		return d.Config.Name + ".log"
	}
	return fmt.Sprintf("%s.%d", d.Config.Name, id)
}

// deviceOf returns the name of a unit's device, at most 15 characters.
func deviceOf(group string, id int) string {
	h := fnv.New32a()
	h.Write([]byte(group))
	return fmt.Sprintf("pando%05x%02d", h.Sum32()&0xfffff, id)
}

// folder returns the folder of a unit's control socket.
func (d *Driver) folder(id int) string { return filepath.Join(d.RunDir, d.Name(id)) }

// logFile returns the path of the file to which all units of the group write. Reports of a unit
// stay there after the unit has left.
func (d *Driver) logFile() string { return filepath.Join(d.RunDir, d.Config.Name, "log") }

// Close implements pando.Units. It also removes the devices and folders of units that a killed
// group of the same name left.
func (d *Driver) Close() {
	if d.starter != nil {
		close(d.starter.ask)
	}
	for id := range pando.UnitsMax {
		if l, err := netlink.LinkByName(deviceOf(d.Config.Name, id)); err == nil {
			_ = netlink.LinkDel(l) // the end of its namespace may have deleted it
		}
		_ = os.RemoveAll(d.folder(id))
	}
	for _, f := range d.sockets {
		f.Close()
	}
	if d.memory != nil {
		d.memory.close()
	}
}
