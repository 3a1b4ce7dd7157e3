package sim

import (
	"errors"
	"slices"
	"sync"

	"pando.run/pando"
	"pando.run/pando/world"
)

// promises holds the acknowledged requests of a run. Each must be true in the store, and stay true
// in the steering.
type promises struct {
	mu      sync.Mutex
	halted  map[pando.InstanceID]bool // every living host has acknowledged
	answers map[pando.IntentID]pando.IntentState
	pushed  map[pando.ObjectID]bool // main contained the commit of the answer
	died    map[pando.InstanceID]bool
	deploys []deployed
}

// deployed is an answered deploy: the newest revision, or the target that has the spec already, has
// a word of its spec.
type deployed struct {
	latest, target pando.Key
	word           string
}

func newPromises() *promises {
	return &promises{
		halted:  map[pando.InstanceID]bool{},
		answers: map[pando.IntentID]pando.IntentState{}, pushed: map[pando.ObjectID]bool{},
		died: map[pando.InstanceID]bool{},
	}
}

func (p *promises) keep(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// answered keeps the answer to an ask. A refusal is an error that is durable.
func (p *promises) answered(i pando.Intent, err error) {
	if i.ID == "" || err != nil && !errors.Is(err, pando.ErrRefused) {
		return
	}
	p.keep(func() { p.answers[i.ID] = i.State })
}

// isHalted reports whether a halt was acknowledged: no new flow may reach the instance.
func (p *promises) isHalted(i pando.InstanceID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.halted[i]
}

// halt keeps the answer to a halt, and looks at the steering of the host.
func (h *host) halt(i pando.InstanceID, r pando.HaltResult) {
	h.c.promises.answered(r.Intent, nil)
	if len(r.Unreachable) > 0 {
		return
	}
	h.c.promises.keep(func() { h.c.promises.halted[i] = true })
	if h.steering.Takes(i) {
		h.c.t.Errorf("halt of %s was acknowledged, and its host steers new flows to it", i)
	}
}

// verifyPromises compares every answer with the commits of the run.
func (c *cluster) verifyPromises() {
	steps := map[pando.IntentID][]pando.IntentState{}
	heads, merged := map[pando.ObjectID]bool{{}: true}, map[pando.InstanceID]bool{}
	revisions := map[pando.Key]string{}
	for _, b := range c.registry.History() {
		for _, r := range b.Changes {
			if r.Value == nil {
				continue
			}
			switch v, _ := world.DecodeAny(r); v := v.(type) {
			case pando.Intent:
				for _, step := range v.History {
					if !slices.Contains(steps[v.ID], step.State) {
						steps[v.ID] = append(steps[v.ID], step.State)
					}
				}
			case pando.StateHead:
				heads[v.Commit] = true
			case pando.Instance:
				merged[v.ID] = merged[v.ID] || v.Phase == pando.PhaseMerged
			case pando.Revision:
				revisions[r.Key] = v.Spec.Environment["VERSION"]
			}
		}
	}
	p := c.promises
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, state := range p.answers {
		if !slices.Contains(steps[id], state) {
			c.t.Errorf("an ask was answered %q, the store has intent %s with %q", state, id, steps[id])
		}
	}
	for id := range p.pushed {
		if !heads[id] {
			c.t.Errorf("a push was acknowledged with commit %s, and main was never there", id)
		}
	}
	for id := range p.died {
		if !merged[id] {
			c.t.Errorf("the death of %s was granted, and the store never had it merged", id)
		}
	}
	for _, d := range p.deploys {
		if revisions[d.latest] != d.word && revisions[d.target] != d.word {
			c.t.Errorf("a deploy of %q was answered with %s and %s, the store has %q and %q there",
				d.word, d.latest, d.target, revisions[d.latest], revisions[d.target])
		}
	}
	c.t.Logf("true: %d answers, %d halts, %d pushes, %d deaths, %d deploys", len(p.answers),
		len(p.halted), len(p.pushed), len(p.died), len(p.deploys))
}
