package turns

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

func TestOneOwnerLeavesTurnsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string](Bound{Total: 3, Each: 2, Waiting: 2})
		got := make(chan func(), 10)
		take := func(o string) {
			done, err := q.Take(t.Context(), o, nil)
			if err != nil {
				t.Error(err)
				return
			}
			got <- done
		}
		for range 4 { // two have a turn and two wait
			go take("a")
		}
		synctest.Wait()
		if len(got) != 2 {
			t.Fatalf("a has %d turns, want 2", len(got))
		}
		if _, err := q.Take(t.Context(), "a", nil); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("one more than may wait: %v", err)
		}
		take("b") // at once, although a waits
		go take("b")
		synctest.Wait()
		if len(got) != 3 {
			t.Fatalf("%d turns, want 3", len(got))
		}
		(<-got)() // of a: its next one was there before b
		synctest.Wait()
		if len(got) != 3 || q.of["a"] != 2 || q.of["b"] != 1 {
			t.Fatalf("%d turns, %v", len(got), q.of)
		}
		for range 5 { // everybody had a turn
			(<-got)()
			synctest.Wait()
		}
		if q.active != 0 || len(q.of)+len(q.waiting) > 0 {
			t.Errorf("left: %+v", q)
		}
	})
}

func TestAWaitHasAReasonAndAWayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string](Bound{Total: 1, Each: 1})
		done, err := q.Take(t.Context(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var why string
		ended := make(chan error, 1)
		go func() {
			_, err := q.Take(ctx, "b", func(text string) { why = text })
			ended <- err
		}()
		synctest.Wait()
		if !strings.Contains(why, "1 of 1") {
			t.Errorf("the reason is %q", why)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		done()
		if done, err = q.Take(t.Context(), "c", nil); err != nil {
			t.Fatal(err)
		}
		done()
	})
}

// Tenants together leave the turns of the reserve to operators. An operator waits for no tenant.
func TestOperatorsHaveAReserveOfTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string](Bound{Total: 4, Each: 2, Reserve: 1})
		var all []func()
		for _, o := range []string{"a", "a", "b"} {
			done, err := q.Take(t.Context(), o, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, done)
		}
		late := make(chan func(), 1)
		go func() {
			if done, err := q.Take(t.Context(), "c", nil); err == nil {
				late <- done
			}
		}()
		synctest.Wait()
		done, err := q.TakeAsOperator(t.Context(), nil)
		if err != nil || len(late) > 0 {
			t.Fatalf("an operator: %v; %d more of owners than the total without the reserve", err, len(late))
		}
		all[0]()
		synctest.Wait()
		if len(late) != 1 {
			t.Error("a turn became free, and the waiting tenant did not get it")
		}
		for _, end := range append(all[1:], done, <-late) {
			end()
		}
		if q.active != 0 || q.owners != 0 || len(q.of) > 0 {
			t.Errorf("left: %+v", q)
		}
	})
}
