package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// kindsAfter returns the kinds of the events that a listener gets at once.
func kindsAfter(t *testing.T, e *events, after uint64) map[pando.SelfEventKind]int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream := e.stream(ctx, after)
	got := map[pando.SelfEventKind]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for v := range stream {
			got[v.Kind]++
		}
	}()
	synctest.Wait()
	cancel()
	<-done
	return got
}

func TestANewListenerGetsThePresentState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvents(time.Now())
		for n := range 2 {
			e.send(time.Now(), pando.EventRestored, nil)
			e.sendBudget(time.Now(), budget{Min: n, Max: 3})
			e.send(time.Now(), pando.EventState, n)
			e.send(time.Now(), pando.EventSnapshot, nil)
			e.send(time.Now(), pando.EventHalted, nil)
			e.send(time.Now(), pando.EventPeers, n)
			e.send(time.Now(), pando.EventDrained, nil)
		}
		got := kindsAfter(t, e, 0)
		for _, k := range []pando.SelfEventKind{pando.EventRestored, pando.EventBudget, pando.EventState,
			pando.EventHalted, pando.EventPeers, pando.EventDrained} {
			if got[k] != 1 {
				t.Errorf("a new listener got %s %d times, want once", k, got[k])
			}
		}
		if got[pando.EventSnapshot] != 0 {
			t.Error("a new listener got the announcement of a snapshot that is over")
		}
	})
}

func TestAStateOutlivesTheKeptEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvents(time.Now())
		e.send(time.Now(), pando.EventPeers, 1)
		first, _ := e.since(0)
		e.send(time.Now(), pando.EventHalted, nil)
		for n := range 2 * eventsKept {
			e.send(time.Now(), pando.EventState, n)
		}
		for _, after := range []uint64{0, first[0].ID} {
			if got := kindsAfter(t, e, after); got[pando.EventHalted] != 1 {
				t.Errorf("after %d: %v, want one event halted", after, got)
			}
		}
	})
}

// A program may read the first event drained before the answer of its halt. It must not sit idle
// until its agent stops it.
func TestDrainedComesAgainUntilTheInstanceDies(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		news, err := b.agent.self.Events(ctx, "web-1", 0)
		b.ok(err)
		var times atomic.Int64
		go func() {
			for e := range news {
				if e.Kind == pando.EventDrained {
					times.Add(1)
				}
			}
		}()
		b.drain("web-1", false)
		time.Sleep(dieGrace - time.Second)
		n, most := times.Load(), int64(dieGrace/drainedAgain)
		if n < most/2 || n > most {
			t.Errorf("the program was told %d times in %s, want about every %s", n, dieGrace,
				drainedAgain)
		}
	})
}
