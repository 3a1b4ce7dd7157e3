package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/world"
)

const (
	linearRuns    = 4 // PANDO_RUNS sets another number
	linearClients = 3
	linearEvery   = 900 * time.Millisecond // between two calls of a client
	checkMax      = 30 * time.Second       // of real time, for one history
)

// contested is the service that the clients of a history change at the same time.
var contested = pando.DefaultService("contested")

// call is one operation of a history, on the latest revision of a service and on its pin.
type call struct {
	deploy bool
	read   bool
	pin    int // 0: unpin
}

// result is the answer to a call. An unknown one has an error that leaves the effect open.
type result struct {
	unknown bool
	latest  int
	pin     int // of a read; 0: none
}

// register is the state of the model.
type register struct{ latest, pin int }

// steps returns the states after a call that gave a result in a state; none: it cannot give that.
func steps(r register, c call, out result) []any {
	after := r
	switch {
	case c.read:
		if r.latest != out.latest || r.pin != out.pin {
			return nil
		}
	case c.deploy:
		after.latest++
		if !out.unknown && out.latest != after.latest {
			return nil
		}
	default:
		after.pin = c.pin
	}
	if out.unknown {
		return []any{r, after}
	}
	return []any{after}
}

// model returns the service as a register, from a state on.
func model(from register) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{from} },
		Step: func(state, in, out any) []any {
			return steps(state.(register), in.(call), out.(result))
		},
	}
	return m.ToModel()
}

// history collects the calls of concurrent clients, until the chaos of a run ends.
type history struct {
	mu    sync.Mutex
	begin register
	all   []porcupine.Operation
}

// do makes a call and notes it with its result. A refused call has no effect and is left out.
func (h *history) do(client int, c call, f func() (result, error)) {
	began := time.Now()
	out, err := f()
	ended := time.Now().UnixNano()
	switch {
	case err == nil:
	case c.read, errors.Is(err, pando.ErrRefused), errors.Is(err, pando.ErrConflict),
		errors.Is(err, pando.ErrStoreFull), errors.Is(err, pando.ErrInvalid):
		return
	default:
		out, ended = result{unknown: true}, math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, porcupine.Operation{ClientId: client, Input: c, Output: out,
		Call: began.UnixNano(), Return: ended})
}

// contest adds the clients of a history to the chaos of a run.
func (c *cluster) contest(act func(string, time.Duration, func(*rand.Rand))) {
	h := c.history
	if h == nil {
		return
	}
	now, err := c.register(c.ctx)
	if err != nil {
		c.t.Errorf("read the contested service: %v", err)
	}
	h.begin = register{now.latest, now.pin}
	for n := range linearClients {
		o := newOperator(c, contested)
		o.spec.State, o.spec.Environment[envNoState] = nil, "yes"
		turn := 0
		act(fmt.Sprint("contestant ", n), linearEvery, func(d *rand.Rand) {
			turn++
			switch d.IntN(3) {
			case 0:
				h.do(n, call{read: true}, func() (result, error) { return c.register(c.ctx) })
			case 1:
				o.spec.Environment["VERSION"] = fmt.Sprint(n, "-", turn) // no two deploys are equal
				h.do(n, call{deploy: true}, func() (out result, err error) {
					err = o.operators(func(ctx context.Context, p access.Operators) error {
						is, err := p.Deploy(ctx, clone(o.spec), by)
						out.latest = is.Latest
						return err
					})
					return out, err
				})
			default:
				pin := d.IntN(3)
				h.do(n, call{pin: pin}, func() (result, error) { return result{}, o.pin(pin) })
			}
		})
	}
}

// pin pins the service, or unpins it for 0.
func (o *operator) pin(n int) error {
	if n == 0 {
		return o.unpin()
	}
	return o.operators(func(ctx context.Context, p access.Operators) error {
		_, err := p.Pin(ctx, o.key, n, 0, by)
		return err
	})
}

// register reads the contested service from the store.
func (c *cluster) register(ctx context.Context) (out result, err error) {
	now, err := c.registry.As("reader").Snapshot(ctx, contested.Key())
	if err != nil {
		return out, err
	}
	for _, rec := range now.Records {
		var s pando.Service
		if err := world.Decode(rec, &s); err != nil {
			return out, err
		}
		out.latest = s.Latest
		if s.Pin.Holds(time.Now()) { // a pin that has ended stays in the record until control looks
			out.pin = s.Pin.Instances
		}
	}
	return out, nil
}

// Concurrent deploys and pins, with faults of the store and of every process, have one order that
// explains all answers and all reads.
func TestTheOperatorsHistoryIsLinearizable(t *testing.T) {
	calls, open := 0, 0
	runs := number(t, "PANDO_RUNS", linearRuns)
	for seed := range runs {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			printSeed(t, seed)
			h := &history{}
			synctest.Test(t, func(t *testing.T) {
				run(t, seed, func(c *cluster) { c.history = h })
			})
			calls += len(h.all)
			for _, o := range h.all {
				if o.Output.(result).unknown {
					open++
				}
			}
			if is := porcupine.CheckOperationsTimeout(model(h.begin), h.all, checkMax); is !=
				porcupine.Ok {
				t.Errorf("the history of %d calls from %+v on is %s: %+v", len(h.all), h.begin, is, h.all)
			}
		})
	}
	t.Logf("%d calls, %d of them without an answer, in %d histories", calls, open, runs)
	if calls < 20*int(runs) {
		t.Errorf("%d calls prove little", calls)
	}
}

// The check finds a lost deploy, two deploys with one number, and a read of the past.
func TestTheCheckFindsWrongHistories(t *testing.T) {
	op := func(n int, c call, out result) porcupine.Operation {
		return porcupine.Operation{ClientId: n, Input: c, Output: out, Call: int64(10 * n),
			Return: int64(10*n + 5)}
	}
	one := op(0, call{deploy: true}, result{latest: 2})
	for name, c := range map[string]struct {
		second porcupine.Operation
		want   porcupine.CheckResult
	}{
		"in order":         {op(1, call{deploy: true}, result{latest: 3}), porcupine.Ok},
		"one number twice": {op(1, call{deploy: true}, result{latest: 2}), porcupine.Illegal},
		"applied twice":    {op(1, call{deploy: true}, result{latest: 4}), porcupine.Illegal},
		"a lost deploy":    {op(1, call{read: true}, result{latest: 1}), porcupine.Illegal},
		"a read":           {op(1, call{read: true}, result{latest: 2}), porcupine.Ok},
		"a pin from nowhere": {op(1, call{read: true}, result{latest: 2, pin: 1}),
			porcupine.Illegal},
	} {
		all := []porcupine.Operation{one, c.second}
		if is := porcupine.CheckOperationsTimeout(model(register{latest: 1}), all,
			checkMax); is != c.want {
			t.Errorf("%s: %s, want %s", name, is, c.want)
		}
	}
}
