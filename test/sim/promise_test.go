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

// stepsOf holds the states that the store had of each intent.
type stepsOf map[pando.IntentID][]pando.IntentState

func (s stepsOf) note(i pando.Intent) {
	for _, step := range i.History {
		if !slices.Contains(s[i.ID], step.State) {
			s[i.ID] = append(s[i.ID], step.State)
		}
	}
}

// verifyAnswers compares the answers to asks with the store.
func (c *cluster) verifyAnswers(all stepsOf) {
	c.promises.mu.Lock()
	defer c.promises.mu.Unlock()
	for id, state := range c.promises.answers {
		if !slices.Contains(all[id], state) {
			c.t.Errorf("an ask was answered %q, the store has intent %s with %q", state, id, all[id])
		}
	}
}

// verifyPromises compares every answer with the commits of the run.
func (c *cluster) verifyPromises() {
	all := stepsOf{}
	heads, merged := map[pando.ObjectID]bool{{}: true}, map[pando.InstanceID]bool{}
	revisions := map[pando.Key]string{}
	for _, b := range c.registry.History() {
		for _, r := range b.Changes {
			if r.Value == nil {
				continue
			}
			switch v, _ := world.DecodeAny(r); v := v.(type) {
			case pando.Intent:
				all.note(v)
			case pando.StateHead:
				heads[v.Commit] = true
			case pando.Instance:
				merged[v.ID] = merged[v.ID] || v.Phase == pando.PhaseMerged
			case pando.Revision:
				revisions[r.Key] = v.Spec.Environment["VERSION"]
			}
		}
	}
	c.verifyAnswers(all)
	p := c.promises
	p.mu.Lock()
	defer p.mu.Unlock()
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
