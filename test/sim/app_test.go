package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// ledger holds the lines of acknowledged commits, and the lines of all attempts.
type ledger struct {
	mu    sync.Mutex
	acked map[string]bool
	tried map[string]bool
}

func newLedger() *ledger { return &ledger{acked: map[string]bool{}, tried: map[string]bool{}} }

func (l *ledger) try(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried[line] = true
}

func (l *ledger) ack(lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range lines {
		l.acked[line] = true
	}
}

// application is one instance's program. Dice choose its actions. Its acknowledged lines are in the
// ledger.
type application struct {
	h    *host
	box  *sim.Sandbox
	id   pando.InstanceID
	dice *rand.Rand

	mu      sync.Mutex
	drained bool

	book book
}

// The environment variables of a spec that make its programs behave in these ways.
const (
	envBroken  = "BROKEN"  // exits at once
	envSilent  = "SILENT"  // is never ready
	envLazy    = "LAZY"    // reads no events and never leaves by itself
	envNoState = "NOSTATE" // writes no state
	envCalm    = "CALM"    // acts once in minutes, for long runs
)

func (h *host) program(ctx context.Context, box *sim.Sandbox) int {
	p := &application{h: h, box: box, id: box.Instance(), dice: h.c.dice(string(box.Instance()), 0)}
	env := box.Spec.Spec.Environment
	if env[envBroken] != "" && p.dice.IntN(3) > 0 {
		return 1
	}
	if p.pause(ctx, 40*time.Millisecond) != nil {
		return 0
	}
	defer p.closeBook()
	if env[envSilent] == "" {
		began := p.h.c.accounts.now()
		for p.h.ask(ctx,
			func(ctx context.Context, s pando.Self) error { return s.Ready(ctx, p.id) }) != nil {
			if p.pause(ctx, 50*time.Millisecond) != nil {
				p.h.c.accounts.noteTurn(p.id, began, stepReady, true)
				return 0
			}
		}
		p.h.c.accounts.noteTurn(p.id, began, stepReady, false)
	}
	if env[envLazy] == "" {
		h.c.go_(func() { p.listen(ctx) })
	}
	rest := 400 * time.Millisecond
	switch {
	case env[envCalm] != "":
		rest = 4 * time.Minute
	case env[envAccount] != "":
		rest = 200 * time.Millisecond
	}
	for p.pause(ctx, rest) == nil {
		p.step(ctx)
	}
	return 0
}

// pause waits up to most, and then for as long as the sandbox is paused.
func (p *application) pause(ctx context.Context, most time.Duration) error {
	if err := pando.Sleep(ctx, sim.Clock{}, time.Duration(1+p.dice.Int64N(int64(most)))); err != nil {
		return err
	}
	return p.box.Awake(ctx)
}

// listen follows the instance's events, and resumes after its agent was away.
func (p *application) listen(ctx context.Context) {
	for ctx.Err() == nil {
		_ = p.h.ask(ctx, func(_ context.Context, s pando.Self) error {
			_, life, err := p.h.self()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(life, cancel)()
			events, err := s.Events(ctx, p.id, 0)
			if err != nil {
				return err
			}
			for e := range events {
				if e.Kind == pando.EventDrained {
					p.setDrained()
				}
			}
			return nil
		})
		if pando.Sleep(ctx, sim.Clock{}, 30*time.Millisecond) != nil {
			return
		}
	}
}

func (p *application) setDrained() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drained = true
}

func (p *application) leaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drained
}

// step executes one random action of an application.
func (p *application) step(ctx context.Context) {
	roll := p.dice.IntN(100)
	if p.leaving() {
		p.leave(ctx)
		return
	}
	quiet := p.h.c.isQuiet()
	lazy := p.box.Spec.Spec.Environment[envLazy] != ""
	switch {
	case roll < 70 && p.box.Spec.Spec.Environment[envAccount] != "":
		p.account(ctx)
	case roll < 55:
		p.write(ctx)
	case roll < 70:
		_ = p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
			_, err := p.push(ctx, s)
			return err
		})
	case roll < 76:
		_ = p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
			_, err := s.StatePull(ctx, p.id)
			return err
		})
	case quiet, lazy:
	case roll < 90:
		ask := pando.Ask{Reason: "load", Wait: p.dice.IntN(4) == 0}
		_ = p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
			intent, err := s.Replicate(ctx, p.id, ask)
			p.h.c.promises.answered(intent, err)
			return err
		})
	default:
		p.halt(ctx)
	}
}

// halt asks for the end of new flows.
func (p *application) halt(ctx context.Context) {
	began := p.h.c.accounts.now()
	err := p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
		result, err := s.Halt(ctx, p.id, pando.Ask{Reason: "idle"})
		if err == nil && ctx.Err() == nil {
			p.h.halt(p.id, result)
			p.h.c.accounts.noteTurn(p.id, began, stepHalt, len(result.Unreachable) > 0)
		}
		return err
	})
	if err != nil && !errors.Is(err, pando.ErrRefused) {
		p.h.c.accounts.noteTurn(p.id, began, stepHalt, true)
	}
}

// write appends lines to the log, counts each, and commits. It does so in one life of the agent,
// like one connection.
func (p *application) write(ctx context.Context) {
	if p.box.Spec.Spec.Environment[envNoState] != "" {
		return
	}
	var lines []string
	err := p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
		for n := range 1 + p.dice.IntN(3) {
			line := fmt.Sprintf("%s-%d-%d", p.id, time.Now().UnixNano(), n)
			p.h.c.ledger.try(line)
			if err := errors.Join(s.StatePatch(ctx, p.id, "log", []byte(line)),
				s.StatePatch(ctx, p.id, "hits", []byte("1"))); err != nil {
				return err
			}
			lines = append(lines, line)
		}
		_, err := s.StateCommit(ctx, p.id, pando.StateChange{Message: "lines"})
		return err
	})
	if err == nil && ctx.Err() == nil { // a program that has ended receives no acknowledgement
		p.h.c.ledger.ack(lines)
	}
}

// push merges the branch into main, and keeps the commit that was acknowledged.
func (p *application) push(ctx context.Context, s pando.Self) (pando.MergeResult, error) {
	r, err := s.StatePush(ctx, p.id)
	if err == nil && r.Taken+r.Merged > 0 { // an empty state has a commit, and no head in the store
		p.h.c.promises.keep(func() { p.h.c.promises.pushed[r.Commit] = true })
	}
	return r, err
}

// leave merges and dies. The next step retries after a refusal or a fault.
func (p *application) leave(ctx context.Context) {
	_ = p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
		if _, err := p.push(ctx, s); err != nil {
			return err
		}
		intent, err := s.Die(ctx, p.id, pando.Ask{Reason: "drained and merged"})
		if err == nil {
			p.h.c.promises.answered(intent, nil)
			p.h.c.promises.keep(func() { p.h.c.promises.died[p.id] = true })
		}
		return err
	})
}
