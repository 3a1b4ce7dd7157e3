package pando

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

type wallClock struct{ Clock }

func (wallClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func TestALongWaitIsToldAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		ctx := TellWaits(context.Background(), func(what string) { told = append(told, what) })
		done := Waiting(ctx, wallClock{}, "registry a")
		time.Sleep(WaitToldAfter - time.Millisecond)
		done()
		done = Waiting(ctx, wallClock{}, "registry b")
		time.Sleep(WaitToldAfter + time.Millisecond)
		done()
		Waiting(context.Background(), wallClock{}, "registry c")()
		if want := []string{"registry b", ""}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
