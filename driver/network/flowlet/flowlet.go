// Package flowlet steers the flowlets of one device to units of network functions, inside the
// kernel. A tcx program finds a packet's flow and decides its unit by the rule of bpf/assign.h. It
// puts a metadata header in front and sends the packet out of the unit's device (SNF §3, §4).
// Another program takes the unit's packets to the other end of the wire.
//
// It never starts a unit. The caller sets the accepting and the ready units with their queues, and
// reads the demand. The rule may take a ready unit into service. The pinned parts keep working
// without a process.
package flowlet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
)

const (
	// Units is the maximum number of units per device.
	Units = pando.UnitsMax
	// HeaderBytes is the size of the metadata header. A unit's device needs an MTU that much larger.
	HeaderBytes = 72
	// FlowsMax is the default of Config.FlowsMax.
	FlowsMax = 1 << 18
)

// ErrMTU reports a device that cannot carry a packet with its header.
var ErrMTU = errors.New("no room for the metadata header")

// Rule has the parameters of the assignment. The names in brackets are those of SNF.
type Rule struct {
	Gap       time.Duration // [T] a longer silence ends a flowlet
	SizeBytes uint32        // [B] more bytes start a new one; 0: no limit
	Targets   uint32        // [K] units that receive pushed state, up to 3
	Pull      time.Duration // time to fetch state from another unit
	Stick     time.Duration // [λ] worth a move: another unit that is sooner by this
	Crowded   time.Duration // a longer delay by others: only a flow's own packets hold its state back
	Grow      time.Duration // a longer backlog of every unit: take one more into service
	GrowEvery time.Duration // at most one more per this time
	Window    time.Duration // of a flow's demand
	UnitBits  uint64        // capacity of a unit in bits per second
	PacketNS  uint32        // and its time for a packet of no bytes
	Pool      uint32        // number of units: ids 0 … Pool-1
}

// DefaultRule returns the rule for a pool of units with a capacity in bits per second.
// function/assign (Config::of) has the reasons.
func DefaultRule(unitBits uint64, pool int) Rule {
	return Rule{
		Gap: 500 * time.Microsecond, SizeBytes: 30_000, Targets: 2,
		Pull: 130 * time.Microsecond, Stick: stick(unitBits), Crowded: time.Millisecond,
		Grow: 100 * time.Microsecond, GrowEvery: 200 * time.Microsecond, Window: time.Millisecond,
		UnitBits: unitBits, Pool: uint32(pool),
	}
}

// stick returns the time of a pull, or the time of 16 kB on a unit if that is longer.
func stick(unitBits uint64) time.Duration {
	return max(130*time.Microsecond, time.Duration(128_000_000_000_000/max(unitBits, 1)))
}

// kernel returns the rule as the program reads it.
func (r Rule) kernel() (flowletAssignConfig, error) {
	if r.UnitBits == 0 || r.Pool == 0 || r.Pool > Units || r.Targets > 3 {
		return flowletAssignConfig{}, fmt.Errorf("rule: capacity %d bit/s, pool %d, %d targets: give a "+
			"capacity, a pool of 1 to %d and at most 3 targets",
			r.UnitBits, r.Pool, r.Targets, Units)
	}
	return flowletAssignConfig{
		GapNs: uint64(r.Gap), PullNs: uint64(r.Pull), StickNs: uint64(r.Stick),
		CrowdedNs: uint64(r.Crowded),
		GrowNs:    uint64(r.Grow), GrowEveryNs: uint64(r.GrowEvery), WindowNs: uint64(r.Window),
		SizeBytes: r.SizeBytes, PacketNs: r.PacketNS, KibNs: uint32(8_192_000_000_000 / r.UnitBits),
		Targets: r.Targets,
	}, nil
}

// Config configures a Driver.
type Config struct {
	PinDir   string // a folder of a bpffs for this device alone; "": nothing outlives the Driver
	Device   string // where packets come in; "": load the program without a device
	Out      string // where they leave and replies come in; "": they leave at Device
	Rule     Rule
	FlowsMax uint32 // flows known at once; 0: FlowsMax of the package
}

var _ pando.Flowlets = (*Driver)(nil)

// Driver steers one device. Referred and Sweep read the kernel's maps only, so they may run beside
// any method but Close and Remove. The other methods must not be called at the same time.
type Driver struct {
	Config
	objects flowletObjects
	memory  *ebpf.Memory            // of flowlet_units
	hooks   map[string]*attach.Hook // by device: the ends of the wire, the units' devices
	mtu     int                     // the larger of the wire's ends
	all     []int                   // sockets that make the wire's ends promiscuous
}

// Open loads and attaches the program. It takes over the program and the flows that an earlier
// Driver pinned.
func Open(c Config) (*Driver, error) {
	spec, err := loadFlowlet()
	if err != nil {
		return nil, fmt.Errorf("read the flowlet program: %w", err)
	}
	d := &Driver{Config: c, hooks: map[string]*attach.Hook{}}
	if err := d.load(spec); err != nil {
		return nil, err
	}
	if err := d.attach(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Driver) load(spec *ebpf.CollectionSpec) error {
	rule, err := d.Rule.kernel()
	if err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("load the flowlet program: %w", err)
	}
	if d.FlowsMax > 0 {
		spec.Maps["flowlet_flows"].MaxEntries = d.FlowsMax
	}
	options := ebpf.CollectionOptions{}
	if d.PinDir != "" {
		if err := os.MkdirAll(d.PinDir, 0o700); err != nil {
			return fmt.Errorf("make a folder for pins: %w", err)
		}
		options.Maps.PinPath = d.PinDir
		for name, m := range spec.Maps {
			if strings.HasPrefix(name, "flowlet_") { // not the constants of the program
				m.Pinning = ebpf.PinByName
			}
		}
	}
	if err := spec.LoadAndAssign(&d.objects, &options); err != nil {
		return fmt.Errorf("load the flowlet program: %w", err)
	}
	if d.memory, err = d.objects.FlowletUnits.Memory(); err != nil {
		d.objects.Close()
		return fmt.Errorf("map the table of units: %w", err)
	}
	return d.objects.FlowletConfig.Put(uint32(0), rule)
}

// Keys of flowlet_wire.
const (
	wireInner uint32 = iota
	wireOuter
)

// attach steers at the ends of the wire. It writes both ends first, so that no packet counts for
// the other end.
func (d *Driver) attach() error {
	if d.Device == "" {
		return nil
	}
	ends := map[uint32]string{wireInner: d.Device}
	if d.Out != "" {
		ends[wireOuter] = d.Out
	} else if err := d.objects.FlowletWire.Put(wireOuter, uint32(0)); err != nil {
		return fmt.Errorf("write the ends of the wire: %w", err)
	}
	for end, name := range ends {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%w: device %s: %w: `ip link` lists them", pando.ErrNotFound, name, err)
		}
		d.mtu = max(d.mtu, device.Attrs().MTU)
		if err := d.objects.FlowletWire.Put(end, uint32(device.Attrs().Index)); err != nil {
			return fmt.Errorf("write the ends of the wire: %w", err)
		}
		if d.Out == "" { // at one device alone, packets for other hosts would be sent again
			continue
		}
		socket, err := passAll(name, device.Attrs().Index)
		if err != nil {
			return err
		}
		d.all = append(d.all, socket)
	}
	for _, name := range ends {
		if err := d.attachAt(name, d.objects.Flowlet); err != nil {
			return err
		}
	}
	return nil
}

// attachAt runs a program on the packets that come in at a device. It replaces a program that an
// earlier Driver pinned there.
func (d *Driver) attachAt(name string, program *ebpf.Program) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("device %s: %w", name, missing(err))
	}
	h, err := attach.Attach(attach.Place{Pin: d.pin(name), IfIndex: device.Attrs().Index}, program)
	if err != nil {
		return fmt.Errorf("attach flowlet steering at %s: %w", name, err)
	}
	d.hooks[name] = h
	return nil
}

// pin returns the pin of the program at a device: "" if nothing outlives the process.
func (d *Driver) pin(device string) string {
	if d.PinDir == "" {
		return ""
	}
	return filepath.Join(d.PinDir, "link-"+device)
}

// missing returns the error of a look-up with ErrNotFound if there is no such device.
func missing(err error) error {
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("%w: %w", pando.ErrNotFound, err)
	}
	return err
}

// SetUnit sets the device of a unit, and takes the unit's packets from that device. The device's
// MTU must be HeaderBytes above those of the wire's ends, else SetUnit returns ErrMTU.
func (d *Driver) SetUnit(id int, device string) error {
	if id < 0 || id >= int(d.Rule.Pool) {
		return fmt.Errorf("unit %d: the pool has units 0 to %d", id, d.Rule.Pool-1)
	}
	l, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s of unit %d: %w", device, id, missing(err))
	}
	if mtu := l.Attrs().MTU; mtu < d.mtu+HeaderBytes {
		return fmt.Errorf("%w: device %s of unit %d has MTU %d, %s has %d: `ip link set %s mtu %d`, "+
			"and the same at its peer",
			ErrMTU, device, id, mtu, d.Device, d.mtu, device, d.mtu+HeaderBytes)
	}
	if err := d.attachAt(device, d.objects.FlowletReturn); err != nil {
		return err
	}
	return d.objects.FlowletDevices.Put(uint32(id), uint32(l.Attrs().Index))
}

// UnsetUnit forgets a unit, before or after its device is deleted. Packets still assigned to it are
// dropped and counted.
func (d *Driver) UnsetUnit(id int, device string) error {
	var err error
	if h := d.hooks[device]; h != nil {
		delete(d.hooks, device)
		if d.PinDir != "" {
			err = attach.Detach(d.pin(device))
		}
		err = errors.Join(err, h.Close())
	}
	return errors.Join(err, d.objects.FlowletDevices.Put(uint32(id), uint32(0)))
}

// Offsets within struct assign_units.
const (
	offsetAccepting = 8 * Units
	offsetReady     = offsetAccepting + 8
	offsetBytes     = offsetAccepting + 24
)

// Demand returns the bytes assigned so far, and the accepting units. These include units that the
// rule took into service.
func (d *Driver) Demand() (bytes, accepting uint64, err error) {
	var words [32]byte
	if _, err := d.memory.ReadAt(words[:], offsetAccepting); err != nil {
		return 0, 0, fmt.Errorf("read the table of units: %w", err)
	}
	return binary.NativeEndian.Uint64(words[offsetBytes-offsetAccepting:]),
		binary.NativeEndian.Uint64(words[:]), nil
}

// Tick updates the rule, about once a millisecond. In accepting and ready, bit i is unit i; a ready
// unit may be taken into service at once. backlog is the time that each unit needs for its queue. A
// unit without an entry keeps the rule's own estimate.
func (d *Driver) Tick(accepting, ready uint64, backlog map[int]time.Duration) error {
	if beyond := bits.Len64(accepting | ready); beyond > int(d.Rule.Pool) {
		return fmt.Errorf("unit %d is to accept, the pool has units 0 to %d", beyond-1, d.Rule.Pool-1)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock of the kernel's programs: %w", err)
	}
	var errs []error
	for id, left := range backlog {
		errs = append(errs, d.write(8*id, uint64(now.Nano()+int64(left))))
	}
	return errors.Join(append(errs, d.write(offsetReady, ready),
		d.write(offsetAccepting, accepting))...)
}

func (d *Driver) write(offset int, value uint64) error {
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], value)
	if _, err := d.memory.WriteAt(word[:], int64(offset)); err != nil {
		return fmt.Errorf("write the table of units: %w", err)
	}
	return nil
}

// Counts reads the counters.
func (d *Driver) Counts() (pando.FlowletCounts, error) {
	var c pando.FlowletCounts
	var perCPU []flowletFlowletTally
	if err := d.objects.FlowletCounts.Lookup(uint32(0), &perCPU); err != nil {
		return c, fmt.Errorf("read the counters of flowlet steering: %w", err)
	}
	for _, cpu := range perCPU {
		for i, into := range []*uint64{&c.Packets, &c.Bytes, &c.Flows, &c.Flowlets, &c.Moves, &c.Grown,
			&c.Others, &c.NoUnit, &c.Full, &c.NoHeader, &c.Aggregates, &c.Returned, &c.Aliases,
			&c.Replaced} {
			*into += cpu.N[i]
		}
	}
	return c, nil
}

// Sweep forgets the flows that have been silent for longer than idle, and returns the number of
// flows left. A flow that returns later begins anew, with no state.
func (d *Driver) Sweep(idle time.Duration) (int, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock of the kernel's programs: %w", err)
	}
	var key flowletFlowletKey
	var flow flowletFlowletFlow
	var silent []flowletFlowletKey
	left := 0
	entries := d.objects.FlowletFlows.Iterate()
	for entries.Next(&key, &flow) {
		if int64(flow.Flow.Seen)+int64(idle) < now.Nano() {
			silent = append(silent, key)
		} else {
			left++
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return left, fmt.Errorf("look through the flow table: %w", err)
	}
	gone := make(map[flowletFlowletKey]bool, len(silent))
	for _, k := range silent {
		if err := d.objects.FlowletFlows.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return left, fmt.Errorf("forget a flow: %w", err)
		}
		gone[k] = true
	}
	return left, d.forgetAliases(gone)
}

// Referred returns the units that flows are at, or were at before. State at a former unit may still
// be requested by that unit's number.
func (d *Driver) Referred() (set uint64, err error) {
	var key flowletFlowletKey
	var flow flowletFlowletFlow
	entries := d.objects.FlowletFlows.Iterate()
	for entries.Next(&key, &flow) {
		for _, unit := range []uint16{flow.Flow.Unit, flow.Flow.Previous} {
			if unit < Units {
				set |= 1 << unit
			}
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return set, fmt.Errorf("look through the flow table: %w", err)
	}
	return set, nil
}

// forgetAliases forgets the aliases of deleted flows.
func (d *Driver) forgetAliases(gone map[flowletFlowletKey]bool) error {
	var alias, original flowletFlowletKey
	var silent []flowletFlowletKey
	entries := d.objects.FlowletAliases.Iterate()
	for len(gone) > 0 && entries.Next(&alias, &original) {
		if gone[original] {
			silent = append(silent, alias)
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("look through the aliases of flows: %w", err)
	}
	for _, k := range silent {
		if err := d.objects.FlowletAliases.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget an alias: %w", err)
		}
	}
	return nil
}

// Close closes the program, and ends the promiscuous mode of its devices. The pinned parts keep
// working; see Remove.
func (d *Driver) Close() error {
	errs := []error{d.objects.Close()}
	for _, h := range d.hooks {
		errs = append(errs, h.Close())
	}
	for _, socket := range d.all {
		errs = append(errs, unix.Close(socket))
	}
	d.all = nil
	return errors.Join(errs...)
}

// Remove ends the steering, pinned or not, and closes.
func (d *Driver) Remove() error {
	err := d.Close()
	if d.PinDir != "" {
		err = errors.Join(err, attach.DetachAll(d.PinDir), os.RemoveAll(d.PinDir))
	}
	return err
}
