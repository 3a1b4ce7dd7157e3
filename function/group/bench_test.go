package group

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// unitBits is the capacity of a unit on the bench: 5,000 bytes a tick.
const unitBits = 40_000_000

// bench is a group in virtual time. The loop is real; steering, units and memory are simulated.
type bench struct {
	*testing.T
	flowlets *flowlets
	units    *units
	memory   *memory
	log      *strings.Builder // read it after synctest.Wait only
	group    *Group
	born     time.Time
	readyAt  time.Time
	ctx      context.Context
	cancel   func()
	ended    chan struct{} // closed when Run has returned
	err      error         // of Run
	fails    error         // the error that Run is to return
}

// clock is the clock of a group. The race detector sees no order between a test that sleeps and a
// loop that wakes. Both take the same lock (see yield), so a test may read and set everything.
type clock struct {
	sim.Clock
	awake *sync.Mutex
}

func (c clock) Now() time.Time {
	c.awake.Lock()
	defer c.awake.Unlock()
	return time.Now()
}

// newBench returns a bench inside a synctest bubble. start starts its group.
func newBench(t *testing.T, c Config) *bench {
	b := &bench{T: t, log: &strings.Builder{}, born: time.Now(), ended: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.flowlets = &flowlets{t: t, devices: map[int]string{}, since: time.Now()}
	b.memory = &memory{}
	b.units = &units{t: t, alive: map[int]*process{}, died: map[int]time.Time{}}
	b.units.startTime, b.units.flowlets = 50*time.Millisecond, b.flowlets
	b.flowlets.units = b.units
	c.Name, c.Tenant, c.Devices, c.UnitBits = "g", "tenant", []string{"in", "out"}, unitBits
	c.Flowlets, c.Units, c.Memory = b.flowlets, b.units, b.memory
	c.Clock, c.Log = clock{awake: &b.units.mu}, b.log
	var err error
	if b.group, err = New(c); err != nil {
		t.Fatal(err)
	}
	return b
}

// start starts the group. The group ends with its test.
func (b *bench) start() {
	b.Cleanup(b.stop)
	go func() {
		defer close(b.ended)
		b.err = b.group.Run(b.ctx, func() { b.readyAt = time.Now() })
	}()
	synctest.Wait()
}

// onBench runs a test on a group that serves.
func onBench(t *testing.T, c Config, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, c)
		b.start()
		b.pass(time.Second)
		if b.readyAt.IsZero() {
			t.Fatal("the group does not serve")
		}
		test(b)
	})
}

// stop ends the group unless it has ended, and checks that nothing is left.
func (b *bench) stop() {
	b.Helper()
	b.yield()
	b.cancel()
	<-b.ended
	b.gone()
}

// gone checks that nothing is left of the group.
func (b *bench) gone() {
	b.Helper()
	synctest.Wait()
	if b.err != nil && b.fails == nil || !errors.Is(b.err, b.fails) {
		b.Errorf("the group ended with %v", b.err)
	}
	if !b.flowlets.removed || !b.units.closed || len(b.units.alive) > 0 || b.units.starting > 0 {
		b.Errorf("steering removed %v, units closed %v, %d alive, %d starting",
			b.flowlets.removed, b.units.closed, len(b.units.alive), b.units.starting)
	}
}

// yield orders the accesses of the test before those of the goroutines that wake next.
func (b *bench) yield() {
	for _, mu := range []*sync.Mutex{&b.units.mu, &b.flowlets.mu, &b.memory.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
}

// pass advances virtual time by d.
func (b *bench) pass(d time.Duration) {
	b.yield()
	time.Sleep(d)
	synctest.Wait()
}

// until waits up to a limit of virtual time for a condition, and returns the time that it took.
func (b *bench) until(what string, limit time.Duration, such func() bool) time.Duration {
	b.Helper()
	began := time.Now()
	for synctest.Wait(); !such(); {
		if time.Since(began) > limit {
			b.Fatalf("not within %v: %s", limit, what)
		}
		b.pass(Tick)
	}
	return time.Since(began)
}

// serving returns the number of units that take flowlets.
func (b *bench) serving() int { return bits.OnesCount64(b.flowlets.accepting) }

// flowlets is the simulated steering. It checks that only units with a device take flowlets.
type flowlets struct {
	t     *testing.T
	units *units

	mu        sync.Mutex
	devices   map[int]string
	accepting uint64
	ready     uint64
	backlog   map[int]time.Duration
	rate      uint64 // of the load, in bits per second
	bits      uint64
	since     time.Time // when the load was last counted
	tickedAt  time.Time
	gapMax    time.Duration // the longest time between two ticks
	referred  uint64
	scanTime  time.Duration // of one walk through the table
	scanning  bool
	scans     int          // for reusable places
	scanned   atomic.Int64 // the begin of the last one, in ns of the Unix time, once it has ended
	uncounted atomic.Bool  // Counts fails
	sweeps    []time.Time
	removed   bool
	refused   error // by SetUnit
}

func (f *flowlets) SetUnit(id int, device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused != nil {
		return f.refused
	}
	if !f.units.isAlive(id) {
		return fmt.Errorf("device %s: %w", device, pando.ErrNotFound)
	}
	f.devices[id] = device
	return nil
}

func (f *flowlets) UnsetUnit(id int, device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if had := f.devices[id]; had != "" && had != device {
		f.t.Errorf("unit %d has the device %s, and %s is taken out", id, had, device)
	}
	delete(f.devices, id)
	return nil
}

func (f *flowlets) Demand() (bytes, accepting uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
	return f.bits / 8, f.accepting, nil
}

// count adds the load since the last count.
func (f *flowlets) count() {
	now := time.Now()
	f.bits += f.rate * uint64(now.Sub(f.since)/time.Microsecond) / 1_000_000
	f.since = now
}

// load sets the load in units: 1.5 needs two units.
func (f *flowlets) load(units float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
	f.rate = uint64(units * unitBits)
}

func (f *flowlets) Tick(accepting, ready uint64, backlog map[int]time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for set := accepting | ready; set != 0; set &= set - 1 {
		if id := bits.TrailingZeros64(set); f.devices[id] == "" {
			f.t.Errorf("unit %d gets flows and is not ready", id)
		}
	}
	if now := time.Now(); !f.tickedAt.IsZero() {
		f.gapMax, f.tickedAt = max(f.gapMax, now.Sub(f.tickedAt)), now
	} else {
		f.tickedAt = now
	}
	f.accepting, f.ready, f.backlog = accepting, ready, backlog
	return nil
}

// walk takes as long as a walk through the table.
func (f *flowlets) walk() {
	f.mu.Lock()
	if f.scanning || f.removed {
		f.t.Error("two walks at the same time, or a walk through a removed table")
	}
	f.scanning = true
	d := f.scanTime
	f.mu.Unlock()
	time.Sleep(d)
	f.mu.Lock()
	f.scanning = false
	f.mu.Unlock()
}

func (f *flowlets) Referred() (uint64, error) {
	began := time.Now()
	f.walk()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scans++
	f.scanned.Store(began.UnixNano())
	return f.referred, nil
}

func (f *flowlets) Sweep(time.Duration) (int, error) {
	f.mu.Lock()
	f.sweeps = append(f.sweeps, time.Now())
	f.mu.Unlock()
	f.walk()
	return 0, nil
}

func (f *flowlets) Counts() (pando.FlowletCounts, error) {
	if f.uncounted.Load() {
		return pando.FlowletCounts{}, errors.New("the table cannot be read")
	}
	return pando.FlowletCounts{Packets: 12}, nil
}

func (f *flowlets) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scanning {
		f.t.Error("the steering is removed during a walk through its table")
	}
	f.removed = true
	return nil
}

// units are the simulated processes of a group.
type units struct {
	t         *testing.T
	mu        sync.Mutex
	alive     map[int]*process
	starting  int
	startTime time.Duration
	startAs   func(id int) (time.Duration, error) // nil: startTime and success
	late      bool                                // Start becomes ready when it is to be ended
	starts    []start
	died      map[int]time.Time // by place, since the last start there
	flowlets  *flowlets
	closed    bool
}

// start is one call of Start.
type start struct {
	id int
	at time.Time
}

func (u *units) Name(id int) string { return fmt.Sprintf("g.%d", id) }

func (u *units) Start(ctx context.Context, id int) (pando.Unit, error) {
	u.mu.Lock()
	if u.alive[id] != nil || u.closed {
		u.t.Errorf("unit %d is started in a place that is taken, or after the end (%v)", id, u.closed)
	}
	died, ok := u.died[id]
	if ok && id != pando.LogUnit && u.flowlets.scanned.Load() < died.UnixNano() {
		u.t.Errorf("unit %d is started in the place of a unit that flows may refer to", id)
	}
	delete(u.died, id)
	u.starts, u.starting = append(u.starts, start{id, time.Now()}), u.starting+1
	takes, err := u.startTime, error(nil)
	if u.startAs != nil {
		takes, err = u.startAs(id)
	}
	p := &process{units: u, id: id, end: make(chan struct{})}
	u.alive[id] = p
	u.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		if !u.late {
			err = ctx.Err()
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.starting--
	if err != nil {
		delete(u.alive, id)
		return nil, err
	}
	p.readyAt = time.Now()
	return p, nil
}

func (u *units) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.alive) > 0 || u.starting > 0 {
		u.t.Errorf("%d units are alive and %d start at the end", len(u.alive), u.starting)
	}
	u.closed = true
}

func (u *units) isAlive(id int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.alive[id] != nil && !u.alive[id].dead
}

// process returns a unit of the group that is ready, or fails the test.
func (u *units) process(id int) *process {
	u.t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.alive[id] == nil {
		u.t.Fatalf("unit %d is not alive", id)
	}
	return u.alive[id]
}

// process is one simulated unit.
type process struct {
	units    *units
	id       int
	readyAt  time.Time
	end      chan struct{}
	once     sync.Once
	dead     bool // guarded by units.mu
	exit     string
	account  *pando.UnitStatus
	leftAt   time.Time
	stuck    bool          // it ignores Leave and Stop
	thinking time.Duration // before it answers
}

func (p *process) die(exit string, account *pando.UnitStatus) {
	p.once.Do(func() {
		p.units.mu.Lock()
		p.dead, p.exit, p.account = true, exit, account
		p.units.mu.Unlock()
		close(p.end)
	})
}

func (p *process) Name() string   { return p.units.Name(p.id) }
func (p *process) Device() string { return fmt.Sprintf("device%d", p.id) }
func (p *process) Kill()          { p.die("signal: killed", nil) }

func (p *process) report() *pando.UnitStatus {
	return &pando.UnitStatus{
		Name: p.Name(), Functions: []pando.UnitBill{{Function: "f", Packets: 100}}, Lost: 1, Flows: 10,
		Fates: [][2]any{{"passed", 90.0}}, LatencyNS: [3]uint64{uint64(p.id)},
		Handover: map[string]int64{"unit": int64(p.id), "pushes": 2}, Seconds: float64(p.id),
	}
}

func (p *process) Status() (*pando.UnitStatus, error) {
	time.Sleep(p.thinking)
	if !p.units.isAlive(p.id) {
		return nil, errors.New("it has ended")
	}
	return p.report(), nil
}

func (p *process) Leave() {
	p.leftAt = time.Now()
	if !p.stuck {
		time.AfterFunc(20*time.Millisecond, func() { p.die("exit status 0", p.report()) })
	}
}

func (p *process) Stop() {
	if !p.stuck {
		p.die("exit status 0", p.report())
	}
}

func (p *process) Wait() pando.UnitEnd {
	<-p.end
	p.units.mu.Lock()
	defer p.units.mu.Unlock()
	delete(p.units.alive, p.id)
	p.units.died[p.id] = time.Now()
	end := pando.UnitEnd{Exit: p.exit, Account: p.account}
	if p.account == nil {
		end.Cause, end.Lines = "a cause", []string{"panicked", "bye"}
	}
	return end
}

// memory is the simulated memory that the units share.
type memory struct {
	mu      sync.Mutex
	alive   uint64
	loads   [pando.UnitsMax]pando.UnitLoad
	cleared []int
}

func (m *memory) SetAlive(units uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alive = units
}

func (m *memory) Loads(units uint64) ([pando.UnitsMax]pando.UnitLoad, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	loads := m.loads
	for id := range loads {
		switch {
		case units>>id&1 == 0:
			loads[id] = pando.UnitLoad{}
		case loads[id] == (pando.UnitLoad{}):
			loads[id].Age = time.Hour
		}
	}
	return loads, nil
}

func (m *memory) Clear(id int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads[id], m.cleared = pando.UnitLoad{}, append(m.cleared, id)
}

// report sets the report of a unit.
func (m *memory) report(id int, l pando.UnitLoad) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads[id] = l
}
