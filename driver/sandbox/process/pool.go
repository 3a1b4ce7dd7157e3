package process

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"pando.run/pando"
)

// pool holds the sandboxes that wait for an instance, and the numbers of all sandboxes. It makes
// new sandboxes in the background. Its methods may be called from any goroutine.
type pool struct {
	newSlot func(number int) (*slot, error)
	made    func(pando.Link) error // called for each sandbox made ahead of need; may be nil
	clock   pando.Clock
	log     *slog.Logger
	lasts   func(*slot) error // a ready sandbox still serves; nil: all do
	numbers int               // numbers are below it
	fill    chan struct{}     // wakes keepReady
	making  chan struct{}     // an element for each sandbox in the making

	mu    sync.Mutex
	want  int // sandboxes kept ready
	ready []*slot
	taken map[int]bool // numbers in use
	next  int
}

// newPool returns an empty pool that makes its sandboxes with newSlot.
func newPool(c Config, newSlot func(number int) (*slot, error)) *pool {
	return &pool{
		newSlot: newSlot,
		made:    c.Made,
		clock:   c.Clock,
		log:     c.Log,
		numbers: 1<<(32-c.Prefix4.Bits()) - 16,
		fill:    make(chan struct{}, 1),
		making:  make(chan struct{}, makingPerCPU*runtime.NumCPU()),
		want:    c.Pool,
		taken:   map[int]bool{},
	}
}

// adopt takes over a slot of a former agent: its number, and the slot itself if no instance uses
// it. adopt destroys an unused slot without a shim.
func (p *pool) adopt(s *slot) {
	if s.Instance == "" && !s.alive() {
		if err := s.destroy(); err != nil {
			p.log.Error("a sandbox of a former agent is not wholly gone", "number", s.Number, "error", err)
			p.keep(s.Number)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[s.Number] = true
	if s.Instance == "" {
		p.ready = append(p.ready, s)
	}
}

// keep marks the number of a sandbox that is left alone.
func (p *pool) keep(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[number] = true
}

// stop empties the pool and makes no new sandboxes ahead of need. The sandboxes keep running.
func (p *pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want, p.ready = 0, nil
}

// empty reports whether no sandbox is ready.
func (p *pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) == 0
}

// short reports whether fewer sandboxes are ready than the pool keeps.
func (p *pool) short() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) < p.want
}

// refill wakes keepReady.
func (p *pool) refill() {
	select {
	case p.fill <- struct{}{}:
	default: // it is awake already
	}
}

// keepReady fills the pool after each claim, until done is closed.
func (p *pool) keepReady(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-p.fill:
		}
		if !p.standBack(done) {
			return
		}
		for !closed(done) && p.short() {
			if err := p.add(); err != nil {
				p.log.Error("a sandbox could not be made ready", "error", err)
				break
			}
		}
	}
}

// add makes one more sandbox ready.
func (p *pool) add() error {
	s, err := p.make()
	if err != nil {
		return err
	}
	if p.made != nil {
		if err := p.made(s.link()); err != nil {
			p.log.Warn("a sandbox that is ready will start slower", "error", err)
		}
	}
	if s.ready, err = dialShim(s); err != nil {
		p.log.Warn("a sandbox that is ready will start slower", "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, s)
	return nil
}

// closed reports whether a channel is closed.
func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// refillWait is the pause of the pool's own work after a claim.
const refillWait = 50 * time.Millisecond

// standBack leaves the machine to the program that just got a sandbox, unless the pool is empty. It
// returns false when done is closed.
func (p *pool) standBack(done <-chan struct{}) bool {
	if p.empty() {
		return true
	}
	timer, stop := p.clock.After(refillWait)
	defer stop()
	select {
	case <-done:
		return false
	case <-timer:
		return true
	}
}

// makingPerCPU bounds the sandboxes in the making, for each processor. Each blocks a thread in the
// kernel, and the agent keeps its threads for good. More at a time would be no faster.
const makingPerCPU = 4

// make makes a slot. It takes numbers in turn, so that a freed number rests as long as possible.
func (p *pool) make() (*slot, error) {
	p.making <- struct{}{}
	defer func() { <-p.making }()
	number, err := p.take()
	if err != nil {
		return nil, err
	}
	s, err := p.newSlot(number)
	if err != nil && s == nil {
		p.free(number)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// take marks the next free number as used, and returns it. It refuses if there is none: two
// sandboxes of one number would share addresses and a folder.
func (p *pool) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.numbers {
		number := p.next
		p.next = (p.next + 1) % p.numbers
		if !p.taken[number] {
			p.taken[number] = true
			return number, nil
		}
	}
	return 0, fmt.Errorf("%w: all %d sandboxes of this host are in use; start it on another host",
		pando.ErrRefused, p.numbers)
}

// free returns the number of a sandbox that is gone.
func (p *pool) free(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, number)
}

// claim returns a ready sandbox, or a new one if the pool is empty.
func (p *pool) claim() (*slot, error) {
	defer p.refill()
	for {
		s := p.pop()
		if s == nil {
			return p.make()
		}
		if s.answerable() == nil && (p.lasts == nil || p.lasts(s) == nil) {
			return s, nil
		}
		if err := s.destroy(); err != nil {
			p.log.Error("a sandbox that serves no more is not wholly gone", "number", s.Number, "error", err)
			continue // its number stays taken
		}
		p.free(s.Number)
	}
}

// pop removes and returns the oldest ready sandbox, or nil.
func (p *pool) pop() *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	s := p.ready[0]
	p.ready = p.ready[1:]
	return s
}
