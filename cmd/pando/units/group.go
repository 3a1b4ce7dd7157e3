// Package units runs the units of one chain of network functions as a group (SNF §3). It steers
// flowlets to the units inside the kernel and decides each millisecond how many units take packets.
// It replaces dead units, and lets unneeded units hand over their states before they leave.
//
// It is never on a packet's path. When its process ends for any reason, its units and its steering
// end with it.
package units

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/flowlet"
	"pando.run/pando/function"
)

// Config is the configuration of a group.
type Config struct {
	Name, Tenant string
	Functions    []string        // .wasm files, in the order in which packets pass them
	Flags        []string        // additional arguments of each unit
	In, Out      string          // devices; without Out, packets leave by In
	Least, Most  int             // number of units
	UnitBits     uint64          // capacity of a unit in bits per second
	Limited      bool            // the capacity is also enforced
	Ports        [2]int          // first and last of the numbers that may be leased to flows
	Limits       pando.Resources // limits of each unit's process; 0 = no limit
	Targets      uint32          // K: units that receive a flow's state
	Gap          time.Duration
	// A flow stays on its first unit: the baseline of measurements.
	PerFlow bool
	Log     bool // an output log has the state of each flow after each batch
	// Socket of a Redis that holds the states instead of the units: the baseline of measurements.
	Store           string
	Exchange        string // how units exchange states: "memory" or "udp"
	Chaos           string // LOSS,REPETITION,DISORDER in percent, for tests
	RunDir, DataDir string
	Binary          string // pando-unit
}

// Tick is the interval at which the group reads demand and queues.
const Tick = time.Millisecond

// fresh is the age up to which a unit's report of its queue overrides the rule's estimate.
const fresh = 2 * time.Millisecond

// unit is one place of the group.
type unit struct {
	phase   function.Phase
	process *process
	started time.Time
	leaves  int // ticks until SIGTERM, after the unit stopped taking packets
	retired bool
}

// logUnit is the place of the output log, if there is one. It is a unit to which nothing is
// steered.
const logUnit = function.Units - 1

// Group is a running group.
type Group struct {
	Config
	memory    *memory
	starter   *starter
	driver    *flowlet.Driver
	cgroups   cgroup.Hierarchies
	sockets   []*os.File
	addresses []string
	mtu       int

	units      [function.Units]unit
	activation *function.Activation
	pool       function.Pool
	bytes      uint64
	counts     Counts
	gone       status // account of units that left in order, from their last reports
	notBefore  time.Time
	served     bool   // the first Least units have served; from now on failures are retried
	failures   uint   // consecutive failed starts
	lastFailed string // the reason of the last failure and the time of the next try
	events     chan event
	sweptAt    time.Time
	scarceAt   time.Time
	closed     bool
}

// Counts are the counters of a group.
type Counts struct {
	UnitTicks uint64 `json:"unit_ticks"` // sum over all ticks of the units that took or held packets
	Ticks     uint64 `json:"ticks"`
	Started   uint64 `json:"started"`
	Died      uint64 `json:"died"`   // without being asked to end
	Left      uint64 `json:"left"`   // because they were not needed
	Failed    uint64 `json:"failed"` // could not be started
}

// event is a change of a process: it is ready (err nil, ended false), could not be started, or has
// ended.
type event struct {
	id      int
	process *process
	ended   bool
	err     error
}

// Run serves until ctx ends or a request asks it to stop. It calls ready once the least number of
// units serves.
func Run(ctx context.Context, c Config, ready func()) error {
	g, err := open(c)
	if err != nil {
		return err
	}
	defer func() { g.close() }()
	listener, err := g.listen()
	if err != nil {
		return err
	}
	asked := make(chan request)
	go serve(listener, asked)
	defer listener.Close()
	ticker := time.NewTicker(Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			g.close()
			return os.RemoveAll(filepath.Join(g.RunDir, g.Name))
		case r := <-asked:
			answer := g.answer(r.words)
			// The group is completely gone before the caller receives the answer.
			if r.words == "stop" {
				text := answer()
				g.close()
				r.answer <- func() []byte { return text }
				<-r.done
				return nil
			}
			r.answer <- answer
		case e := <-g.events:
			if err := g.happened(e); err != nil {
				return err
			}
			err = g.tick()
		case <-ticker.C:
			err = g.tick()
		}
		if err != nil {
			return err
		}
		if !g.served && g.serving() >= g.Least && (!c.Log || g.units[logUnit].process != nil) {
			g.served = true
			if ready != nil {
				ready()
			}
		}
	}
}

func open(c Config) (*Group, error) {
	g := &Group{Config: c, events: make(chan event, function.Units), sweptAt: time.Now()}
	var err error
	if g.activation, err = function.NewActivation(c.UnitBits, c.Most); err != nil {
		return nil, fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	}
	g.activation.Least = c.Least
	// Ids are used in turn, so that a new unit is not mistaken for a dead one. There are more ids than
	// units.
	g.pool = function.Pool{Spare: 1, Most: c.Most, Places: logUnit, Idle: int(10 * time.Second / Tick)}
	for _, device := range []string{c.In, c.Out} {
		if l, err := netlink.LinkByName(device); err == nil {
			g.mtu = max(g.mtu, l.Attrs().MTU+room)
		}
	}
	rule := flowlet.DefaultRule(c.UnitBits, function.Units)
	rule.Targets, rule.Gap = c.Targets, c.Gap
	if c.PerFlow {
		rule.Gap, rule.SizeBytes = 1<<62, 0
	}
	if g.driver, err = flowlet.Open(flowlet.Config{Device: c.In, Out: c.Out, Rule: rule}); err != nil {
		return nil, err
	}
	if c.Limits != (pando.Resources{}) {
		g.cgroups, err = cgroup.Open(cgroup.Root)
	}
	if err == nil {
		g.memory, err = newMemory(c.Name)
	}
	if err == nil {
		g.starter, err = newStarter()
	}
	if err == nil && c.Exchange == "udp" {
		err = g.openSockets()
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// openSockets opens a UDP socket for each possible unit. The sockets are on loopback, because all
// units are on one host.
func (g *Group) openSockets() error {
	if lo, err := net.InterfaceByName("lo"); err == nil && lo.Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: --exchange udp needs the device lo, which is down: `ip link set lo up`", pando.ErrInvalid)
	}
	for range function.Units {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return fmt.Errorf("open a socket for state between units: %w", err)
		}
		g.addresses = append(g.addresses, c.LocalAddr().String())
		f, err := c.File()
		c.Close()
		if err != nil {
			return fmt.Errorf("open a socket for state between units: %w", err)
		}
		g.sockets = append(g.sockets, f)
	}
	return nil
}

func (g *Group) serving() (n int) {
	for id := range g.units {
		if id != logUnit && g.units[id].phase == function.Ready {
			n++
		}
	}
	return n
}

// happened handles an event of a process.
func (g *Group) happened(e event) error {
	u := &g.units[e.id]
	if e.err != nil {
		return g.failed(e)
	}
	if !e.ended {
		u.process = e.process
		g.counts.Started++
		g.failures, g.lastFailed = 0, ""
		if e.id == logUnit {
			u.phase = function.Ready
			return nil
		}
		err := g.driver.SetUnit(e.id, e.process.device)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil // the unit and its device are gone; the event of its end follows
		}
		if err != nil {
			return g.unsteered(e, err)
		}
		u.phase = function.Ready
		return nil
	}
	asked := u.phase == function.Draining
	u.phase, u.retired, u.process = function.Draining, true, nil
	var err error
	if e.id == logUnit {
		// The next tick starts another log, which the units fill.
		*u = unit{started: u.started}
	} else {
		err = g.driver.UnsetUnit(e.id, e.process.device)
	}
	g.memory.clear(e.id)
	last, account := g.lastWords(e.process)
	if account != nil {
		g.gone.account(account)
	}
	_ = os.RemoveAll(filepath.Join(g.RunDir, e.process.name))
	if asked {
		g.counts.Left++
		return err
	}
	g.counts.Died++
	fmt.Fprintf(os.Stderr, "unit %s ended (%v%s); another takes its place%s\n", e.process.name, e.process.command.ProcessState, e.process.why, last)
	if time.Since(u.started) < time.Second {
		g.notBefore = time.Now().Add(time.Second) // prevents a tight loop of starts
	}
	return err
}

// log returns the path of the file to which all units of the group write. Reports of a unit stay
// there after the unit has left.
func (g *Group) log() string { return filepath.Join(g.RunDir, g.Name, "log") }

// lastWords reads the part of the log since a unit began. It returns the last lines that are not
// JSON events, indented, and the account that a unit writes at an orderly end.
func (g *Group) lastWords(p *process) (words string, account *status) {
	file, err := os.Open(g.log())
	if err != nil {
		return "", nil
	}
	defer file.Close()
	var lines []string
	read := bufio.NewScanner(io.NewSectionReader(file, p.logged, 1<<62))
	read.Buffer(nil, 1<<20)
	for read.Scan() {
		line := read.Text()
		if !strings.HasPrefix(line, "{") {
			lines = append(lines[max(0, len(lines)-9):], line)
			continue
		}
		if s := (&status{}); strings.HasPrefix(line, `{"name":`) && json.Unmarshal([]byte(line), s) == nil && s.Name == p.name {
			account = s
		}
	}
	if len(lines) > 0 {
		words = ": the last words\n  " + strings.Join(lines, "\n  ")
	}
	return words, account
}

// tick decides how many units take packets, updates the kernel's rule, and starts and ends units.
func (g *Group) tick() error {
	bytes, accepting, err := g.driver.Demand()
	if err != nil {
		return err
	}
	need := g.activation.Tick(bytes-g.bytes, bits.OnesCount64(accepting))
	g.bytes = bytes
	var phases [function.Units]function.Phase
	for id := range g.units {
		phases[id] = g.units[id].phase
	}
	plan := g.pool.Plan(need, phases[:])
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock of the kernel's programs: %w", err)
	}
	backlog, busy := g.queues(now.Nano())
	g.memory.setAlive(g.alive())
	if err := g.driver.Tick(plan.Accept, plan.Ready, backlog); err != nil {
		return err
	}
	g.counts.Ticks++
	g.counts.UnitTicks += uint64(bits.OnesCount64(plan.Accept | busy))
	if time.Now().After(g.notBefore) {
		if g.Log && g.units[logUnit].phase == function.Cold {
			g.begin(logUnit)
		}
		for _, id := range plan.Start {
			g.begin(id)
		}
	}
	for _, id := range plan.Stop {
		fmt.Fprintf(os.Stderr, "unit %s leaves: %s\n", g.nameOf(id), plan.Why)
		g.units[id].phase, g.units[id].leaves = function.Draining, 5
	}
	g.leave()
	if err := g.sweep(); err != nil {
		return g.unswept(err)
	}
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

// queues returns the remaining work of each unit with a recent report, and the set of units that
// hold packets.
func (g *Group) queues(nowNS int64) (map[int]time.Duration, uint64) {
	backlog, busy := map[int]time.Duration{}, uint64(0)
	for id := range g.units {
		if g.units[id].process == nil {
			continue
		}
		r := g.memory.report(id)
		if r.waiting > 0 {
			busy |= 1 << id
		}
		if time.Duration(nowNS-int64(r.nowNS)) < fresh {
			backlog[id] = max(0, time.Duration(int64(r.finishNS)-nowNS))
		}
	}
	return backlog, busy
}

// leave sends SIGTERM to units that got no new packets for some ticks.
func (g *Group) leave() {
	for id := range g.units {
		if u := &g.units[id]; u.process != nil && u.leaves > 0 {
			if u.leaves--; u.leaves == 0 {
				_ = u.process.command.Process.Signal(syscall.SIGTERM) // the unit may have ended already
			}
		}
	}
}

// begin starts a unit in a place. The result arrives as an event.
func (g *Group) begin(id int) {
	u := &g.units[id]
	*u = unit{phase: function.Starting, started: time.Now()}
	go func() {
		p, err := g.starter.start(g, id)
		if err == nil {
			if err = p.wait(); err != nil {
				p.release(g)
			}
		}
		if err != nil {
			g.events <- event{id: id, err: err}
			return
		}
		g.events <- event{id: id, process: p}
		_ = p.command.Wait() // the process state has the reason
		p.release(g)
		g.events <- event{id: id, process: p, ended: true}
	}()
}

// close ends the steering, then the units. Later calls do nothing.
func (g *Group) close() {
	if g.closed {
		return
	}
	g.closed = true
	err := g.driver.Remove()
	for id := range g.units {
		if p := g.units[id].process; p != nil {
			_, _ = ask(filepath.Join(g.RunDir, p.name, "control.sock"), "stop") // the unit may have ended
		}
	}
	deadline := time.After(5 * time.Second)
	for id := range g.units {
		for g.units[id].process != nil {
			select {
			case e := <-g.events:
				g.units[e.id].process = nil
				if e.process != nil && !e.ended {
					g.units[e.id].process = e.process // it has just become ready; the event of its end follows
					_ = e.process.command.Process.Kill()
				}
			case <-deadline:
				for id := range g.units { // the events of their ends follow
					if p := g.units[id].process; p != nil {
						_ = p.command.Process.Kill()
					}
				}
			}
		}
	}
	if g.starter != nil {
		close(g.starter.ask)
	}
	for id := range function.Units {
		if l, err := netlink.LinkByName(deviceOf(g.Name, id)); err == nil {
			_ = netlink.LinkDel(l) // the end of its namespace may have deleted it
		}
		_ = os.RemoveAll(filepath.Join(g.RunDir, g.nameOf(id)))
	}
	for _, f := range g.sockets {
		f.Close()
	}
	if g.memory != nil {
		g.memory.close()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "end the steering:", err)
	}
}
