package screen

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestAStripShowsTheHighestOfEachShare(t *testing.T) {
	if got := bars([]float64{0, 1, 8, 1, 0, 4}, 3); got != "▁█▄" {
		t.Fatalf("six values in three cells are %q", got)
	}
	if got := bars(nil, 4); got != "    " {
		t.Fatalf("no values are %q", got)
	}
}

func TestNoLineIsLongerThanTheScreen(t *testing.T) {
	for _, line := range strings.Split(Tail([]string{"a", "äöüäöüäöü", "0123456789"}, 2, 8), "\n") {
		if n := len([]rune(line)); n > 8 {
			t.Errorf("%q has %d cells", line, n)
		}
	}
	if got := Tail([]string{"1", "2", "3"}, 2, 8); got != "2\n3\n" {
		t.Errorf("the last two are %q", got)
	}
}

func TestWhatFailedBecauseOfAnInterruptIsNotTold(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	failed := errors.New("signal: killed")
	if err := Ended(ctx, failed); !errors.Is(err, failed) {
		t.Errorf("a failure becomes %v", err)
	}
	stop()
	left := errors.New("a namespace is left")
	err := Ended(ctx, errors.Join(Ended(ctx, failed), left))
	if !errors.Is(err, ErrInterrupted) || errors.Is(err, failed) || !errors.Is(err, left) {
		t.Errorf("after an interrupt it is %v", err)
	}
	if err := Ended(ctx, nil); err != nil {
		t.Errorf("a run that was over becomes %v", err)
	}
}
