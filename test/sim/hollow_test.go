package sim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// hollow is a host without an agent of its own: it takes the steps of its instances in the store,
// as an agent does, and steers nothing. A thousand real agents have a copy of all endpoints each,
// which is more than the memory of the machine that simulates them.
type hollow struct {
	f      *fleet
	record pando.Host

	mu      sync.Mutex
	life    int // its number grows with each start
	fence   pando.Fence
	ctx     context.Context
	kill    context.CancelFunc
	started map[pando.InstanceID]bool // since the machine booted
}

// retry is the wait of a hollow host after a write that failed.
const retry = 100 * time.Millisecond

// start joins the cluster until the host joined. Instances that ran before a reboot have failed.
func (h *hollow) start() {
	ctx, kill := context.WithCancel(h.f.ctx)
	h.mu.Lock()
	h.life++
	h.ctx, h.kill, h.started = ctx, kill, map[pando.InstanceID]bool{}
	h.mu.Unlock()
	record := h.record
	record.Joined = time.Now()
	for ctx.Err() == nil {
		f, _, err := h.f.registry.As(string(h.record.Name)).Join(ctx, record, pando.HostLease)
		if err == nil {
			h.mu.Lock()
			h.fence = f
			h.mu.Unlock()
			break
		}
		nap(retry)
	}
	for _, i := range h.f.on(h.record.Name) {
		h.f.go_(func() { h.step(ctx, i) })
	}
}

// alive returns the host's present life, or nil while it is down.
func (h *hollow) alive() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fence == (pando.Fence{}) || h.ctx.Err() != nil {
		return nil
	}
	return h.ctx
}

// die ends every program of the host, and its lease runs out.
func (h *hollow) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kill()
	h.fence = pando.Fence{}
}

// path is the way that an instance takes at its host, with the time before each step.
type path struct {
	after  time.Duration
	phases []pando.Phase
	reason string
}

// paths follow the agent's (agent/life.go, agent/leave.go and agent/end.go): its recorder writes
// the steps of a moment in one commit.
var paths = map[pando.Phase]path{
	pando.PhasePlaced: {20 * time.Millisecond, []pando.Phase{pando.PhaseStarting},
		"the program runs"},
	pando.PhaseStarting: {60 * time.Millisecond, []pando.Phase{pando.PhaseReady,
		pando.PhaseInRotation}, "it is ready"},
	pando.PhaseDraining: {2 * time.Second, []pando.Phase{pando.PhaseDrained, pando.PhaseMerged},
		"its last flow ended"},
	pando.PhaseDrained: {time.Millisecond, []pando.Phase{pando.PhaseMerged}, "it has no state"},
	pando.PhaseFailed:  {time.Millisecond, []pando.Phase{pando.PhaseMerged}, "it has no state"},
	pando.PhaseMerged:  {time.Millisecond, nil, ""},
}

// step takes the next step of an instance, unless the world has moved meanwhile. The record of
// each step brings the next one.
func (h *hollow) step(ctx context.Context, i world.Versioned[pando.Instance]) {
	next, known := paths[i.V.Phase]
	if h.lost(i.V) {
		next, known = path{time.Millisecond, []pando.Phase{pando.PhaseFailed}, "its host restarted"}, true
	}
	if !known {
		return
	}
	dice := h.f.dice(string(i.V.ID), uint64(i.Modified))
	nap((next.after/2 + time.Duration(dice.Int64N(int64(next.after)))).Round(fleetTick))
	for ctx.Err() == nil {
		err := h.write(ctx, i, next)
		switch {
		case err == nil, errors.Is(err, pando.ErrConflict), errors.Is(err, pando.ErrFenced):
			return // the newer record comes, or the next life
		case errors.Is(err, pando.ErrUnavailable), errors.Is(err, pando.ErrStoreFull):
			nap(retry)
		default:
			h.f.t.Errorf("%s: %s of %s: %v", h.record.Name, i.V.Phase, i.V.ID, err)
			return
		}
	}
}

// lost reports whether the program of an instance ended with a former life of the machine. It notes
// a program that starts.
func (h *hollow) lost(i pando.Instance) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch i.Phase {
	case pando.PhasePlaced:
		h.started[i.ID] = true
	case pando.PhaseStarting, pando.PhaseReady, pando.PhaseInRotation, pando.PhaseDraining:
		return !h.started[i.ID]
	}
	return false
}

// write commits the steps of an instance with its intents, or its end.
func (h *hollow) write(
	ctx context.Context, i world.Versioned[pando.Instance], next path,
) error {
	now, last := time.Now(), i.V
	t := pando.Txn{If: []pando.Condition{i.If()}}
	h.mu.Lock()
	t.Fence = h.fence
	h.mu.Unlock()
	steps := next.phases
	for _, p := range steps {
		last = last.Become(p, now, next.reason)
	}
	if last.Phase == pando.PhaseStarting {
		last.IP4 = netip.AddrFrom4([4]byte{10, byte(h.record.Slot >> 8), byte(h.record.Slot), 1})
	}
	for _, id := range []pando.IntentID{last.Intent, last.Halt} {
		if err := h.follow(ctx, &t, last, id, steps); err != nil {
			return err
		}
	}
	if len(steps) == 0 {
		t.Delete = append(t.Delete, last.Key())
	} else {
		t.Put = append(t.Put, last)
	}
	_, err := h.f.registry.As(string(h.record.Name)).Commit(ctx, t)
	return err
}

// follow adds an intent of an instance to a transaction, with the steps that it can take.
func (h *hollow) follow(
	ctx context.Context, t *pando.Txn, i pando.Instance, id pando.IntentID, steps []pando.Phase,
) error {
	if id == "" {
		return nil
	}
	key := pando.Intent{Service: i.Service, ID: id}.Key()
	s, err := h.f.registry.As(string(h.record.Name)).Snapshot(ctx, key)
	if err != nil || len(s.Records) == 0 {
		return err
	}
	v, err := world.DecodeAny(s.Records[0])
	intent, ok := v.(pando.Intent)
	if err != nil || !ok {
		return fmt.Errorf("intent %s: %w", id, errors.Join(err, pando.ErrInvalid))
	}
	was, now := intent.State, time.Now()
	for _, p := range steps {
		to, ok := stateOf[p]
		ending := to == pando.IntentMerged || intent.State == pando.IntentDraining
		if ok && intent.State.May(to) && (intent.Verb == pando.VerbHalt) == ending {
			intent = intent.Become(to, now, i.Reason)
		}
	}
	if len(steps) == 0 && intent.Instance == i.ID && intent.Verb != pando.VerbReplicate &&
		intent.State.May(pando.IntentDead) {
		intent = intent.Become(pando.IntentDead, now, "its record is gone")
	}
	if intent.State != was {
		t.If = append(t.If, pando.Condition{Key: key, Modified: s.Records[0].Modified})
		t.Put = append(t.Put, intent)
	}
	return nil
}

// stateOf maps the phase of an instance to the state of its intents.
var stateOf = map[pando.Phase]pando.IntentState{
	pando.PhaseStarting: pando.IntentStarting, pando.PhaseReady: pando.IntentReady,
	pando.PhaseInRotation: pando.IntentInRotation, pando.PhaseFailed: pando.IntentFailed,
	pando.PhaseMerged: pando.IntentMerged,
}

// ask sends control the request of an instance and keeps the answer.
func (h *hollow) ask(i pando.Instance, verb pando.Verb) {
	ctx := h.alive()
	if ctx == nil {
		return
	}
	h.mu.Lock()
	fence := h.fence
	h.mu.Unlock()
	now := time.Now()
	intent := pando.Intent{
		ID: pando.IntentID(h.f.ids.Sequential(now)), Service: i.Service, Verb: verb,
		Host: h.record.Name, By: pando.Asker{Kind: pando.AskerInstance, Name: string(i.ID)},
	}.Become(pando.IntentAsked, now, "load")
	if verb == pando.VerbHalt {
		intent.Instance = i.ID
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	records, err := h.f.answer(ctx, fence, intent)
	if err != nil {
		h.f.count(func(n *counts) { n.unanswered++ })
		return
	}
	for _, r := range records {
		if v, err := world.DecodeAny(r); err == nil {
			if v, ok := v.(pando.Intent); ok && v.ID == intent.ID {
				h.f.promises.answered(v, nil)
			}
		}
	}
	h.f.count(func(n *counts) { n.answered++ })
}

// answer brings an ask to the control that leads.
func (f *fleet) answer(
	ctx context.Context, by pando.Fence, i pando.Intent,
) (records []pando.Record, err error) {
	f.cluster.mu.Lock()
	leaders := slices.Clone(f.leaders)
	f.cluster.mu.Unlock()
	for _, c := range leaders {
		records, err = c.Answer(ctx, by, i, func() {})
		if !errors.Is(err, pando.ErrUnavailable) {
			break
		}
	}
	return records, err
}
