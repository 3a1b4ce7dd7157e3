package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"pando.run/pando"
	"pando.run/pando/state"
)

const (
	accountRuns = 6      // PANDO_RUNS sets another number
	envAccount  = "BOOK" // the programs keep one account together, and its calls are noted
)

// accounts collects the calls of the instances of the run's service. A number orders the beginnings
// and the ends of the calls. A short call begins and ends at one virtual time.
type accounts struct {
	mu     sync.Mutex
	number int64
	main   []porcupine.Operation                      // payments and reads of the common state
	turns  map[pando.InstanceID][]porcupine.Operation // of the rotation of an instance
}

// now returns the number of this moment. Without a collection it returns 0.
func (a *accounts) now() int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	return a.number
}

// noteMain adds a payment or a read that began at a number.
func (a *accounts) noteMain(began int64, is payment, out reading) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	o := porcupine.Operation{Input: is, Output: out, Call: began, Return: a.number}
	if out.unknown {
		o.Return = math.MaxInt64
	}
	a.main = append(a.main, o)
}

// noteTurn adds a step of the rotation of an instance that began at a number.
func (a *accounts) noteTurn(i pando.InstanceID, began int64, is step, unknown bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	o := porcupine.Operation{Input: is, Output: unknown, Call: began, Return: a.number}
	if unknown {
		o.Return = math.MaxInt64
	}
	a.turns[i] = append(a.turns[i], o)
}

// payment is the line that a payment adds to the log; empty: it is a read.
type payment string

// reading is the result of a payment or of a read.
type reading struct {
	unknown bool // the effect of a payment is open
	log     string
}

// turn is a call on main by numbers: the place of a payment in the log, or the lines that a read
// saw.
type turn struct {
	read bool
	n    int
}

// account returns the model of a state that all instances change: the lines in main. A payment
// takes the next place.
func account() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, in, _ any) (bool, any) {
			was, is := state.(int), in.(turn)
			if is.read {
				return is.n == was, was
			}
			return is.n == was, was + 1
		},
	}
}

// numbered returns the calls on main with the places of their lines in the longest log that a read
// saw. A payment without an answer either is there, or no read saw it.
func (a *accounts) numbered(t *testing.T) (all []porcupine.Operation) {
	longest := ""
	for _, o := range a.main {
		if log := o.Output.(reading).log; len(log) > len(longest) {
			longest = log
		}
	}
	place := map[payment]int{}
	for line := range strings.Lines(longest) {
		is := payment(strings.TrimSuffix(line, "\n"))
		if _, twice := place[is]; twice {
			t.Errorf("main has the payment %s twice", is)
		}
		place[is] = len(place)
	}
	for _, o := range a.main {
		is, out := o.Input.(payment), o.Output.(reading)
		n, paid := place[is]
		switch {
		case is != "" && !paid && out.unknown:
			continue
		case is != "" && !paid:
			place[is] = len(place) // no read of it follows
			n = place[is]
		case is == "" && !strings.HasPrefix(longest, out.log):
			t.Errorf("the read %d to %d saw lines that main has no more, or has elsewhere", o.Call, o.Return)
			continue
		case is == "":
			n = strings.Count(out.log, "\n")
		}
		o.Input = turn{read: is == "", n: n}
		all = append(all, o)
	}
	return all
}

// step is a step of the rotation of an instance.
type step string

// The steps of a rotation.
const (
	stepReady step = "ready"
	stepHalt  step = "halt"
	stepFlow  step = "flow" // a client's first packet reached the instance
)

// rotation returns the model of the rotation of an instance: it takes new flows after it is ready
// and before it is halted.
func rotation() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{step("")} },
		Step: func(state, in, out any) []any {
			was, is := state.(step), in.(step)
			after := is
			switch {
			case is == stepFlow && was != stepReady:
				return nil
			case is == stepFlow, is == stepReady && was == stepHalt:
				after = was
			}
			if out.(bool) {
				return []any{was, after}
			}
			return []any{after}
		},
	}
	return m.ToModel()
}

// book holds the open payment of an instance. A payment is repeated until its push succeeds.
type book struct {
	line  payment // of the last payment
	began int64   // of the open payment; 0: none is open
}

// account makes a payment, or reads the account.
func (p *application) account(ctx context.Context) {
	if p.book.began == 0 && p.dice.IntN(2) == 0 {
		p.read(ctx)
		return
	}
	p.pay(ctx)
}

// pay adds a line to the log of main. A commit carries the position of the program, so that a
// payment counts once if an answer is lost.
func (p *application) pay(ctx context.Context) {
	a := p.h.c.accounts
	if p.book.began == 0 {
		p.book.began = a.now()
		p.book.line = payment(fmt.Sprint(p.id, "-", p.book.began)) // a program may start again
	}
	position := "at/" + string(p.id)
	err := p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
		at, err := s.StateGet(ctx, p.id, position)
		if err != nil && !errors.Is(err, pando.ErrNotFound) {
			return err
		}
		if string(at.Bytes) != string(p.book.line) {
			change := pando.StateChange{Patch: map[string]string{"hits": "1", "log": string(p.book.line)},
				Put: map[string]string{position: string(p.book.line)}}
			if _, err := s.StateCommit(ctx, p.id, change); err != nil {
				return err
			}
		}
		_, err = p.push(ctx, s)
		return err
	})
	if err == nil && ctx.Err() == nil {
		a.noteMain(p.book.began, p.book.line, reading{})
		p.book.began = 0
	}
}

// read pulls and reads the log, and the counter of its lines.
func (p *application) read(ctx context.Context) {
	a := p.h.c.accounts
	began := a.now()
	log, hits := "", 0
	err := p.h.ask(ctx, func(ctx context.Context, s pando.Self) error {
		if _, err := s.StatePull(ctx, p.id); err != nil {
			return err
		}
		v, err := s.StateGet(ctx, p.id, "log")
		if errors.Is(err, pando.ErrNotFound) {
			return nil
		}
		log = string(v.Bytes)
		if v, err = s.StateGet(ctx, p.id, "hits"); err == nil {
			hits, err = strconv.Atoi(string(v.Bytes))
		}
		return err
	})
	if err != nil || ctx.Err() != nil {
		return
	}
	if n := strings.Count(log, "\n"); hits != n {
		p.h.c.t.Errorf("%s counts %d payments and has %d lines", p.id, hits, n)
	}
	a.noteMain(began, "", reading{log: log})
}

// closeAccount reads main after everything has ended.
func (c *cluster) closeAccount(main pando.StateHead) {
	for _, h := range c.hosts {
		if v, err := state.Open(h.objects, service, stateTypes).Read(main.Commit, "log"); err == nil {
			c.accounts.noteMain(c.accounts.now(), "", reading{log: string(v.Bytes)})
			return
		}
	}
	c.t.Errorf("no host has the log of main, %s", main.Commit)
}

// closeBook notes an open payment as unknown. Its host may merge it later.
func (p *application) closeBook() {
	if p.book.began > 0 {
		p.h.c.accounts.noteMain(p.book.began, p.book.line, reading{unknown: true})
	}
}

// Payments into a common state, reads of it, and the rotation of each instance have one order that
// explains all answers, with faults of the store and of every process: on one host, and with copies
// on three.
func TestTheSelfHistoryIsLinearizable(t *testing.T) {
	first, runs := number(t, "PANDO_SEED", 0), number(t, "PANDO_RUNS", accountRuns)
	if os.Getenv("PANDO_SEED") != "" {
		runs = 1
	}
	var sum counted
	for seed := first; seed < first+runs; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			printSeed(t, seed)
			a := &accounts{turns: map[pando.InstanceID][]porcupine.Operation{}}
			defer a.judge(t, &sum) // a failed bubble ends its test at once
			synctest.Test(t, func(t *testing.T) {
				run(t, seed, func(c *cluster) { c.accounts = a })
			})
		})
	}
	t.Logf("%d payments and reads, %d of them without an answer, %d steps of rotations, %d histories",
		sum.calls, sum.open, sum.turns, runs)
	if runs > 1 && sum.calls < 50*int(runs) {
		t.Errorf("%d calls prove little", sum.calls)
	}
}

// counted is the size of the histories of a test.
type counted struct{ calls, open, turns int }

// judge checks the histories of a run.
func (a *accounts) judge(t *testing.T, sum *counted) {
	sum.calls += len(a.main)
	for _, o := range a.main {
		if o.Output.(reading).unknown {
			sum.open++
		}
	}
	judge(t, "the account", account(), a.numbered(t))
	for i, all := range a.turns {
		sum.turns += len(all)
		judge(t, "the rotation of "+string(i), rotation(), all)
	}
}

// judge checks a history against its model. It prints the first call that no order explains.
func judge(t *testing.T, name string, m porcupine.Model, all []porcupine.Operation) {
	t.Helper()
	is, info := porcupine.CheckOperationsVerbose(m, all, checkMax)
	if is == porcupine.Ok {
		return
	}
	var order []int // of the longest part that has one
	for _, part := range info.PartialLinearizations() {
		for _, o := range part {
			if len(o) > len(order) {
				order = o
			}
		}
	}
	var first *porcupine.Operation
	for n, o := range all {
		if !slices.Contains(order, n) && (first == nil || o.Return < first.Return) {
			first = &all[n]
		}
	}
	t.Errorf("the history of %s is %s: %d of %d calls have an order; the next one is %+v, %d to %d",
		name, is, len(order), len(all), first.Input, first.Call, first.Return)
}

// The models find a lost payment, a read of the past, a payment out of turn, and a flow after a
// halt.
func TestTheModelsFindWrongHistories(t *testing.T) {
	a := &accounts{turns: map[pando.InstanceID][]porcupine.Operation{}}
	pay := func(line payment) { a.noteMain(a.now(), line, reading{}) }
	read := func(log string) { a.noteMain(a.now(), "", reading{log: log}) }
	for name, c := range map[string]struct {
		calls func()
		want  porcupine.CheckResult
	}{
		"in turn":     {func() { pay("a"); read("a\n"); pay("b"); read("a\nb\n") }, porcupine.Ok},
		"a lost one":  {func() { pay("a"); pay("b"); read("a\n") }, porcupine.Illegal},
		"of the past": {func() { pay("a"); read("a\n"); read("") }, porcupine.Illegal},
		"out of turn": {func() { pay("b"); pay("a"); read("a\nb\n") }, porcupine.Illegal},
	} {
		a.main = nil
		c.calls()
		if is := porcupine.CheckOperationsTimeout(account(), a.numbered(t), checkMax); is != c.want {
			t.Errorf("%s: %s, want %s", name, is, c.want)
		}
	}
	for _, steps := range [][]step{{stepFlow}, {stepReady, stepHalt, stepFlow},
		{stepReady, stepHalt, stepReady, stepFlow}} {
		wrong := pando.InstanceID(fmt.Sprint(steps))
		for _, s := range steps {
			a.noteTurn(wrong, a.now(), s, false)
		}
		if is := porcupine.CheckOperationsTimeout(rotation(), a.turns[wrong],
			time.Second); is != porcupine.Illegal {
			t.Errorf("%v is %s", steps, is)
		}
	}
}
