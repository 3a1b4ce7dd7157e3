package turn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneHolderAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn, holders := New(), 0
		for range 10 {
			go func() {
				if err := turn.Take(t.Context()); err != nil {
					t.Error(err)
				}
				if holders++; holders != 1 {
					t.Errorf("%d hold the turn", holders)
				}
				time.Sleep(time.Second)
				holders--
				turn.Give()
			}()
		}
		time.Sleep(time.Minute)
		if err := turn.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		within, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turn.Take(within); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second holder: %v", err)
		}
	})
}
