// Package group runs the units of one chain of network functions as a group (SNF §3). Each
// millisecond it decides how many units take packets. It replaces dead units, and lets unneeded
// units hand over their states before they leave.
//
// It is never on a packet's path. It reads no clock and touches nothing outside: steering, the
// units' processes and their shared memory are interfaces of the root.
package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"time"

	"pando.run/pando"
	"pando.run/pando/function"
)

// Config holds the settings and the drivers of a group.
type Config struct {
	Name, Tenant string
	PID          int      // of the process that runs the group
	Devices      []string // ends of the wire

	Limits      pando.Resources // limits of each unit's process; 0 = no limit
	Least, Most int             // number of units
	UnitBits    uint64          // capacity of a unit in bits per second
	OutputLog   bool            // an output log has the state of each flow after each batch

	Flowlets pando.Flowlets
	Units    pando.Units
	Memory   pando.UnitMemory
	Clock    pando.Clock
	Log      io.Writer // receives a line for each unit that fails, dies or leaves
}

// Tick is the interval at which the group reads demand and queues.
const Tick = time.Millisecond

const (
	// fresh is the age up to which a unit's report of its queue overrides the rule's estimate.
	fresh = 2 * time.Millisecond
	// keep is how long the group remembers that it needed units.
	keep = 10 * time.Second
	// early is the age below which the death of a unit delays the next start by the same time. It
	// prevents a tight loop of starts.
	early = time.Second
	// leaveTicks is the time between a unit's last new flowlet and the order to leave.
	leaveTicks = 5
	// closeWait is how long units may take to end with their group.
	closeWait = 5 * time.Second
)

// unit is one place of the group.
type unit struct {
	phase   function.Phase
	process pando.Unit // nil before the unit is ready and after its end
	started time.Time
	leaves  int           // ticks until the order to leave, after the unit stopped taking packets
	retired bool          // the unit has ended, and flows may still refer to its number
	worked  time.Duration // processor time in its last report
}

// Group is a group of units. Run runs it.
type Group struct {
	Config
	units      [pando.UnitsMax]unit
	activation *function.Activation
	pool       function.Pool
	bytes      uint64 // demand so far
	counts     Counts
	gone       pando.UnitStatus // account of units that left in order, from their last reports
	next       time.Time        // the next tick

	notBefore  time.Time // the next start
	served     bool      // the first Least units have served; from now on failures are retried
	failures   uint      // consecutive failed starts
	lastFailed string    // the reason of the last failure and the time of the next try

	starts context.Context // ends the starts in progress
	cancel context.CancelFunc
	lives  int // units that start or live
	events chan event
	asked  chan request
	ended  chan struct{} // closed when Run has returned

	scanned chan scan
	scans   bool      // a scan is in progress
	sweptAt time.Time // the last deletion of silent flows
	freedAt time.Time // the last look for reusable places
}

// event is a change of a unit: it is ready (end and err nil), could not be started, or has ended.
type event struct {
	id      int
	process pando.Unit
	end     *pando.UnitEnd
	err     error
}

// New returns a group. It starts nothing.
func New(c Config) (*Group, error) {
	activation, err := function.NewActivation(c.UnitBits, c.Most)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	}
	activation.Least = c.Least
	g := &Group{
		Config: c, activation: activation, events: make(chan event, pando.UnitsMax),
		// Ids are used in turn, so that a new unit is not mistaken for a dead one. There are more
		// ids than units.
		pool:  function.Pool{Spare: 1, Most: c.Most, Places: pando.LogUnit, Idle: int(keep / Tick)},
		asked: make(chan request), ended: make(chan struct{}), scanned: make(chan scan, 1),
	}
	g.starts, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// Run serves until ctx ends or a request asks it to stop. It calls ready once the least number of
// units serves. When it returns, the steering, the units and all that they left are gone.
func (g *Group) Run(ctx context.Context, ready func()) error {
	defer close(g.ended)
	defer g.close()
	now := g.Clock.Now()
	g.sweptAt, g.next = now, now.Add(Tick)
	for {
		more, err := g.step(ctx)
		if err != nil || !more {
			return err
		}
		if !g.served && g.complete() {
			g.served = true
			if ready != nil {
				ready()
			}
		}
	}
}

// step handles one event. It returns false when the group is to end.
func (g *Group) step(ctx context.Context) (more bool, err error) {
	tick, stop := g.Clock.After(g.next.Sub(g.Clock.Now()))
	defer stop()
	select {
	case <-ctx.Done():
		return false, nil
	case r := <-g.asked:
		if r.snapshot == nil {
			return false, nil
		}
		r.snapshot <- g.snapshot()
	case e := <-g.events:
		if err := g.happened(e); err != nil {
			return false, err
		}
		err = g.tick(g.Clock.Now())
	case s := <-g.scanned:
		err = g.free(s)
	case <-tick:
		now := g.Clock.Now()
		// Ticks that a busy machine missed are left out.
		g.next = g.next.Add(Tick + max(0, now.Sub(g.next).Truncate(Tick)))
		err = g.tick(now)
	}
	return true, err
}

// complete reports whether the least number of units serves, and the output log if there is one.
func (g *Group) complete() bool {
	return g.serving() >= g.Least && (!g.OutputLog || g.units[pando.LogUnit].process != nil)
}

// serving returns the number of units that are ready for packets.
func (g *Group) serving() (n int) {
	for id := range pando.LogUnit {
		if g.units[id].phase == function.Ready {
			n++
		}
	}
	return n
}

// happened handles an event of a unit.
func (g *Group) happened(e event) error {
	switch {
	case e.err != nil:
		g.lives--
		return g.failed(e)
	case e.end != nil:
		g.lives--
		return g.unitEnded(e)
	}
	return g.unitReady(e)
}

// unitReady adds a unit that is ready to the steering.
func (g *Group) unitReady(e event) error {
	u := &g.units[e.id]
	u.process = e.process
	g.counts.Started++
	g.failures, g.lastFailed = 0, ""
	if e.id == pando.LogUnit {
		u.phase = function.Ready
		return nil
	}
	err := g.Flowlets.SetUnit(e.id, e.process.Device())
	if errors.Is(err, pando.ErrNotFound) {
		return nil // the unit and its device are gone; the event of its end follows
	}
	if err != nil {
		return g.unsteered(e, err)
	}
	u.phase = function.Ready
	return nil
}

// unitEnded handles the end of a unit. It takes the unit out of the steering.
func (g *Group) unitEnded(e event) error {
	u := &g.units[e.id]
	asked := u.phase == function.Draining
	u.phase, u.retired, u.process = function.Draining, true, nil
	var err error
	if e.id == pando.LogUnit {
		// The next tick starts another log, which the units fill.
		*u = unit{started: u.started}
	} else {
		err = g.Flowlets.UnsetUnit(e.id, e.process.Device())
	}
	g.Memory.Clear(e.id)
	if e.end.Account != nil {
		account(&g.gone, e.end.Account)
	}
	if asked {
		g.counts.Left++
		return err
	}
	g.counts.Died++
	g.reportDeath(e)
	if now := g.Clock.Now(); now.Sub(u.started) < early {
		g.notBefore = now.Add(early)
	}
	return err
}

// tick decides how many units take packets, updates the kernel's rule, and starts and ends units.
func (g *Group) tick(now time.Time) error {
	bytes, accepting, err := g.Flowlets.Demand()
	if err != nil {
		return err
	}
	backlog, busy, worked, err := g.queues()
	if err != nil {
		return err
	}
	need := g.activation.Tick(max(bytes-g.bytes, g.bytesOf(worked)), bits.OnesCount64(accepting))
	g.bytes = bytes
	var phases [pando.UnitsMax]function.Phase
	for id := range g.units {
		phases[id] = g.units[id].phase
	}
	plan := g.pool.Plan(need, phases[:])
	g.Memory.SetAlive(g.alive())
	if err := g.Flowlets.Tick(plan.Accept, plan.Ready, backlog); err != nil {
		return err
	}
	g.counts.Ticks++
	g.counts.UnitTicks += uint64(bits.OnesCount64(plan.Accept | busy))
	if now.After(g.notBefore) {
		if g.OutputLog && g.units[pando.LogUnit].phase == function.Cold {
			g.begin(pando.LogUnit)
		}
		for _, id := range plan.Start {
			g.begin(id)
		}
	}
	for _, id := range plan.Stop {
		fmt.Fprintf(g.Log, "unit %s leaves: %s\n", g.Units.Name(id), plan.Why)
		g.units[id].phase, g.units[id].leaves = function.Draining, leaveTicks
	}
	g.leave()
	g.scan(now)
	return nil
}

// alive returns the set of units that answer other units.
func (g *Group) alive() (set uint64) {
	for id := range g.units {
		if u := &g.units[id]; u.process != nil && u.phase != function.Starting {
			set |= 1 << id
		}
	}
	return set
}

// bytesOf returns the bytes that units of nominal speed serve in this processor time. Small packets
// and slow functions take more time for their bytes.
func (g *Group) bytesOf(worked time.Duration) uint64 {
	share := 1.0 // of a processor, which a unit may use
	if g.Limits.CPUs > 0 {
		share = min(share, g.Limits.CPUs)
	}
	return uint64(worked.Seconds() / share * float64(g.UnitBits) / 8)
}

// queues returns the remaining work of each unit with a fresh report, the set of units that hold
// packets, and the processor time that all units used since the last call.
func (g *Group) queues() (
	backlog map[int]time.Duration, busy uint64, worked time.Duration, err error,
) {
	units := uint64(0)
	for id := range g.units {
		if g.units[id].process != nil {
			units |= 1 << id
		}
	}
	loads, err := g.Memory.Loads(units)
	if err != nil {
		return nil, 0, 0, err
	}
	backlog = map[int]time.Duration{}
	for ; units != 0; units &= units - 1 {
		id := bits.TrailingZeros64(units)
		if loads[id].Waiting > 0 {
			busy |= 1 << id
		}
		if loads[id].Age < fresh {
			backlog[id] = loads[id].Backlog
		}
		worked += max(0, loads[id].Worked-g.units[id].worked)
		g.units[id].worked = loads[id].Worked
	}
	return backlog, busy, worked, nil
}

// leave orders units to leave that got no new packets for some ticks.
func (g *Group) leave() {
	for id := range g.units {
		if u := &g.units[id]; u.process != nil && u.leaves > 0 {
			if u.leaves--; u.leaves == 0 {
				u.process.Leave()
			}
		}
	}
}

// begin starts a unit in a place. Its readiness and its end arrive as events.
func (g *Group) begin(id int) {
	g.units[id] = unit{phase: function.Starting, started: g.Clock.Now()}
	g.lives++
	go func() {
		process, err := g.Units.Start(g.starts, id)
		if err != nil {
			g.events <- event{id: id, err: err}
			return
		}
		g.events <- event{id: id, process: process}
		end := process.Wait()
		g.events <- event{id: id, process: process, end: &end}
	}()
}

// close ends the steering, then the units.
func (g *Group) close() {
	g.cancel()
	if g.scans {
		<-g.scanned // it reads the steering's tables
	}
	err := g.Flowlets.Remove()
	for id := range g.units {
		if p := g.units[id].process; p != nil {
			p.Stop()
		}
	}
	late, stop := g.Clock.After(closeWait)
	defer stop()
	for g.lives > 0 {
		select {
		case e := <-g.events:
			if e.err == nil && e.end == nil {
				e.process.Kill() // the event of its end follows
				continue
			}
			g.lives--
			g.units[e.id].process = nil
		case <-late:
			for id := range g.units {
				if p := g.units[id].process; p != nil {
					p.Kill()
				}
			}
		}
	}
	g.Units.Close()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(g.Log, "end the steering:", err)
	}
}
