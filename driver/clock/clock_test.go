package clock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func TestTheClockDeliversOnceAndAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := Clock{}.Now()
		c, stop := Clock{}.After(time.Minute)
		defer stop()
		if at := <-c; at.Sub(began) != time.Minute {
			t.Errorf("delivered after %v", at.Sub(began))
		}
		select {
		case at := <-c:
			t.Errorf("delivered again at %v", at)
		case <-time.After(time.Hour):
		}
	})
}

func TestAStoppedWaitDeliversNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := Clock{}.After(time.Minute)
		stop()
		select {
		case at := <-c:
			t.Errorf("delivered at %v", at)
		case <-time.After(time.Hour):
		}
	})
}

func TestASleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := Clock{}.Now()
		if err := pando.Sleep(ctx, Clock{}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the sleep returned %v", err)
		}
		if d := (Clock{}).Now().Sub(began); d != time.Second {
			t.Errorf("the sleep took %v", d)
		}
		if err := pando.Sleep(t.Context(), Clock{}, time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// The processor time grows while this process works, and a wait costs none to speak of.
func TestWorkedCountsWorkAndNotWaits(t *testing.T) {
	began := Worked()
	for end := time.Now().Add(time.Minute); Worked()-began < 20*time.Millisecond; {
		if time.Now().After(end) {
			t.Fatal("a minute of work counts as less than 20 ms")
		}
	}
	began = Worked()
	<-time.After(100 * time.Millisecond)
	if got := Worked() - began; got > 50*time.Millisecond {
		t.Errorf("a wait of 100 ms cost %v", got)
	}
}
