package events

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// kindsAfter returns the kinds of the events that a listener gets at once.
func kindsAfter(t *testing.T, e *Feed, after uint64) map[pando.SelfEventKind]int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream := e.Stream(ctx, after)
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
		e := New(time.Now())
		for n := range 2 {
			e.Send(time.Now(), pando.EventRestored, nil)
			e.SendBudget(time.Now(), Budget{Min: n, Max: 3})
			e.Send(time.Now(), pando.EventState, n)
			e.Send(time.Now(), pando.EventSnapshot, nil)
			e.Send(time.Now(), pando.EventHalted, nil)
			e.Send(time.Now(), pando.EventPeers, n)
			e.Send(time.Now(), pando.EventDrained, nil)
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
		e := New(time.Now())
		e.Send(time.Now(), pando.EventPeers, 1)
		first, _ := e.Since(0)
		e.Send(time.Now(), pando.EventHalted, nil)
		for n := range 2 * eventsKept {
			e.Send(time.Now(), pando.EventState, n)
		}
		for _, after := range []uint64{0, first[0].ID} {
			if got := kindsAfter(t, e, after); got[pando.EventHalted] != 1 {
				t.Errorf("after %d: %v, want one event halted", after, got)
			}
		}
	})
}
