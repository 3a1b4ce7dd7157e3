package share

import (
	"errors"
	"sync"
	"testing"

	"pando.run/pando"
)

var bound = Bound{Total: 10, Each: 4, Reserve: 2}

// fill takes places for an owner until the pool refuses, and returns their number.
func fill(t *testing.T, p *Pool[string], owner string) (n int) {
	t.Helper()
	for ; n <= 100; n++ {
		if _, err := p.Take(owner, 1); err != nil {
			if !errors.Is(err, pando.ErrRefused) {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the pool never refuses")
	return n
}

func TestOneOwnerLeavesRoomForAnotherAndForOperators(t *testing.T) {
	p := New[string](bound)
	for _, want := range []struct {
		owner string
		n     int
	}{{"a", 4}, {"b", 4}, {"c", 0}} { // 8 = the total without the reserve
		if n := fill(t, p, want.owner); n != want.n {
			t.Errorf("%s has %d places, want %d", want.owner, n, want.n)
		}
	}
	for n := range 2 {
		if _, err := p.TakeAsOperator(1); err != nil {
			t.Errorf("place %d of the reserve: %v", n+1, err)
		}
	}
	var full *FullError
	if _, err := p.TakeAsOperator(1); !errors.As(err, &full) || full.Share || full.Use.All != 10 {
		t.Errorf("beyond the total: %v", err)
	}
	if _, err := p.Take("a", 1); !errors.As(err, &full) || !full.Share || full.Use.Own != 4 {
		t.Errorf("beyond the share: %v", err)
	}
}

func TestOperatorsMayTakeEverything(t *testing.T) {
	p := New[string](bound)
	h, err := p.TakeAsOperator(10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Take("a", 1); err == nil {
		t.Error("an owner got more than the total")
	}
	h.Shrink(3) // of the reserve, 2 are in use
	if n := fill(t, p, "a"); n != 3 {
		t.Errorf("a has %d places, want 3", n)
	}
}

func TestAHoldGivesBackOnce(t *testing.T) {
	p := New[string](bound)
	h, err := p.Take("a", 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Grow(2); err != nil {
		t.Fatal(err)
	}
	if err := h.Grow(1); err == nil {
		t.Error("a hold grew beyond the share")
	}
	h.Shrink(1)
	if u := p.Use("a"); u != (Use{All: 3, Owners: 3, Own: 3}) {
		t.Errorf("after Shrink: %+v", u)
	}
	h.Close()
	h.Close()
	h.Shrink(1)
	if err := h.Grow(1); err != nil {
		t.Error(err)
	}
	if u := p.Use("a"); u != (Use{}) || len(p.of) != 0 {
		t.Errorf("after Close: %+v, %d owners", u, len(p.of))
	}
}

func TestManyHoldersAtOnceStayWithinTheBound(t *testing.T) {
	p := New[int](Bound{Total: 50, Each: 5, Reserve: 10})
	var all sync.WaitGroup
	for n := range 200 {
		all.Go(func() {
			h, err := p.Take(n%20, 1)
			if u := p.Use(n % 20); u.Owners > 40 || u.Own > 5 || u.All > 50 {
				t.Errorf("beyond the bound: %+v", u)
			}
			if err == nil {
				h.Close()
			}
		})
	}
	all.Wait()
	if u := p.Use(0); u != (Use{}) {
		t.Errorf("left: %+v", u)
	}
}
