package pando

import (
	"context"
	"time"
)

// UnitsMax is the largest number of units in a group. A set of units is a uint64: bit i is unit i.
const UnitsMax = 64

// LogUnit is the number of a group's output log, if there is one. The log is a unit to which
// nothing is steered.
const LogUnit = UnitsMax - 1

// Flowlets steers the flowlets of one device to units (driver/network/flowlet). Referred and Sweep may run
// at any time before Remove. The other methods must not be called at the same time.
type Flowlets interface {
	// SetUnit sets the device of a unit. It returns ErrNotFound if there is no such device.
	SetUnit(id int, device string) error
	// UnsetUnit forgets a unit, before or after its device is deleted.
	UnsetUnit(id int, device string) error
	// Demand returns the bytes assigned so far, and the units that take new flowlets. These include
	// units that the kernel's rule added since the last Tick.
	Demand() (bytes, accepting uint64, err error)
	// Tick updates the rule, about once a millisecond. accepting and ready are sets of units. The
	// rule may add a ready unit at once. backlog is the time that a unit needs for its packets. A
	// unit without an entry keeps the rule's own estimate.
	Tick(accepting, ready uint64, backlog map[int]time.Duration) error
	// Referred returns the units that flows are at, or were at before.
	Referred() (set uint64, err error)
	// Sweep forgets the flows that have been silent for longer than idle. It returns the number of
	// flows left.
	Sweep(idle time.Duration) (left int, err error)
	// Counts returns the packets of the device so far, by their fate.
	Counts() (FlowletCounts, error)
	// Remove ends the steering.
	Remove() error
}

// FlowletCounts has the counters of flowlet steering since it began.
type FlowletCounts struct {
	Packets, Bytes, Flows, Flowlets, Moves, Grown uint64
	// Others are not IP: they go to the other end of the wire untouched.
	Others uint64
	// Dropped, in this order: no accepting unit, a full flow table, no room for the header.
	NoUnit, Full, NoHeader uint64
	// Aggregates are packets that a device had merged (GRO). They pass whole.
	Aggregates uint64
	// Packets that came from units, and aliases of flows learnt from them.
	Returned, Aliases uint64
	// Replaced are flows that gave their place in a full table to a new one.
	Replaced uint64
}

// Units starts the units of one group (driver/sandbox/unit). Its methods may be called from any goroutine.
type Units interface {
	// Name returns the name of a unit.
	Name(id int) string
	// Start starts a unit and waits until the unit is ready. When ctx ends before that, Start ends
	// the unit and returns an error.
	Start(ctx context.Context, id int) (Unit, error)
	// Close removes all that the units left. No unit is alive, and no Start is in progress.
	Close()
}

// Unit is one running unit. Its methods may be called from any goroutine.
type Unit interface {
	// Name returns the name of the unit.
	Name() string
	// Device returns the name of the device by which packets reach the unit.
	Device() string
	// Status returns the unit's report of its work. A unit that does not answer is an error.
	Status() (*UnitStatus, error)
	// Leave makes the unit hand over its flows and end. It does not wait.
	Leave()
	// Stop makes the unit end at once, in good order. It waits for the unit's answer.
	Stop()
	// Kill ends the unit without an answer.
	Kill()
	// Wait waits until the unit has ended. It is called once.
	Wait() UnitEnd
}

// UnitEnd describes the end of a unit.
type UnitEnd struct {
	Exit    string      // exit status or signal
	Cause   string      // a known cause beyond the exit status, or ""
	Lines   []string    // the last lines that the unit printed
	Account *UnitStatus // its work, if it ended in good order
}

// UnitMemory is the memory that the units of one group share (driver/sandbox/unit).
type UnitMemory interface {
	// SetAlive publishes the set of live units. If a unit has left the set, it wakes the others.
	SetAlive(units uint64)
	// Loads returns the newest report of each unit of a set.
	Loads(units uint64) ([UnitsMax]UnitLoad, error)
	// Clear deletes the report of a unit that has ended.
	Clear(id int)
}

// UnitLoad is a unit's report of its queue.
type UnitLoad struct {
	Age     time.Duration // since the unit wrote the report; huge if it never wrote one
	Backlog time.Duration // time from now until the unit has served its packets
	Waiting uint64        // packets not served yet
	// Worked is the processor time that the unit used since its start. It is 0 for a unit with a
	// limited rate.
	Worked time.Duration
}

// UnitStatus is the report of a unit about its work (function/unit/src/unit.rs).
type UnitStatus struct {
	Name      string           `json:"name"`
	Tenant    string           `json:"tenant"`
	PID       int              `json:"pid"`
	Epoch     int              `json:"epoch"`
	Devices   []string         `json:"devices"`
	Limits    *UnitLimits      `json:"limits,omitempty"` // of each unit
	Seconds   float64          `json:"seconds"`
	Functions []UnitBill       `json:"functions"`
	Fates     [][2]any         `json:"fates"` // packets per fate, as pairs of name and number
	Lost      uint64           `json:"lost"`
	Unsent    uint64           `json:"unsent"`
	Flows     uint64           `json:"flows"`
	LatencyNS [3]uint64        `json:"latency_ns"` // p50, p75, p99
	Traps     []string         `json:"traps"`
	Handover  map[string]int64 `json:"handover,omitempty"`
}

// UnitLimits are the limits of a unit's process.
type UnitLimits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
}

// UnitBill is the work of one function in a unit.
type UnitBill struct {
	Function string `json:"function"`
	Packets  uint64 `json:"packets"`
	Bytes    uint64 `json:"bytes"`
	Fuel     uint64 `json:"fuel"`
	Trapped  uint64 `json:"trapped"`
}
