package process

import (
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakePool returns a pool whose slots have this process as their shim.
func fakePool() *pool {
	p := &pool{numbers: 4, fill: make(chan struct{}, 1), making: make(chan struct{}, 2),
		taken: map[int]bool{}}
	p.newSlot = func(number int) (*slot, error) { return living(number), nil }
	return p
}

func living(number int) *slot {
	return &slot{Number: number, PID: os.Getpid(), Started: startTime(os.Getpid())}
}

// Packets of an ended sandbox may still be on their way to its number.
func TestFreedNumberRestsUntilAllOthersHadTheirTurn(t *testing.T) {
	p := fakePool()
	p.taken[2] = true
	var got []int
	for range 5 {
		s, err := p.claim()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s.Number)
		p.free(s.Number)
	}
	if want := []int{0, 1, 3, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("got the numbers %v, want %v", got, want)
	}
}

func TestPoolAdoptsTheSlotsOfAFormerAgent(t *testing.T) {
	p := fakePool()
	used, ready, dead := living(0), living(1), &slot{Number: 2, dir: t.TempDir()}
	used.Instance = "web-1"
	for _, s := range []*slot{used, ready, dead} {
		p.adopt(s)
	}
	if !p.taken[0] || !p.taken[1] || p.taken[2] {
		t.Errorf("the numbers %v are taken, want 0 and 1", p.taken)
	}
	if s, err := p.claim(); err != nil || s != ready {
		t.Errorf("got slot %+v (%v), want the ready one", s, err)
	}
	if _, err := os.Stat(dead.dir); !os.IsNotExist(err) {
		t.Errorf("the folder of a slot without a shim is still there (%v)", err)
	}
}

func TestStoppedPoolMakesNothingAheadOfNeed(t *testing.T) {
	p := fakePool()
	p.want = 2
	p.adopt(living(0))
	if !p.short() || p.empty() {
		t.Fatal("a pool with one of two sandboxes is not short, or is empty")
	}
	p.stop()
	if p.short() || !p.empty() {
		t.Error("a stopped pool is short, or keeps a sandbox")
	}
	done := make(chan struct{})
	p.refill()
	ended := make(chan struct{})
	go func() { defer close(ended); p.keepReady(done) }()
	close(done)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the pool does not end")
	}
}

// Hundreds of instances may start at once. Each sandbox in the making blocks a thread, so few are
// made at a time. The others wait.
func TestFewSandboxesAreMadeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const claims = 500
		p := fakePool()
		p.numbers = 2 * claims
		var mu sync.Mutex
		now, most, made := 0, 0, 0
		next := make(chan struct{})
		p.newSlot = func(number int) (*slot, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-next
			mu.Lock()
			defer mu.Unlock()
			now--
			made++
			return &slot{Number: number}, nil
		}
		var claiming sync.WaitGroup
		for range claims {
			claiming.Go(func() {
				if _, err := p.claim(); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(next)
		claiming.Wait()
		if most != cap(p.making) || made != claims || len(p.taken) != claims {
			t.Errorf("%d sandboxes were made, %d numbers are taken, %d in the making at once; want %d, "+
				"%[4]d and %d", made, len(p.taken), most, claims, cap(p.making))
		}
	})
}

// Two sandboxes never have one number, also when all are in use.
func TestAPoolWithoutAFreeNumberRefuses(t *testing.T) {
	p := fakePool()
	for range p.numbers {
		if _, err := p.claim(); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := p.claim(); err == nil {
		t.Errorf("got the number %d twice", s.Number)
	}
	p.free(2)
	if s, err := p.claim(); err != nil || s.Number != 2 {
		t.Error(s, err)
	}
}
