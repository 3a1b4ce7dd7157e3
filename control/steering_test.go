package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/wall"
	"pando.run/pando/world"
)

// publishing are hosts that confirm their steering at once, never, or once the test publishes.
type publishing struct {
	pando.Peers
	mu     sync.Mutex
	asked  map[pando.HostName]int
	silent map[pando.HostName]chan struct{} // closed: it confirms
	misses map[pando.HostName]string        // what it leaves out
}

func (p *publishing) Applied(
	ctx context.Context, h pando.Host, _ []pando.ServiceKey, _ pando.StoreRevision,
) (string, error) {
	p.mu.Lock()
	p.asked[h.Name]++
	open, misses := p.silent[h.Name], p.misses[h.Name]
	p.mu.Unlock()
	if open == nil {
		return misses, nil
	}
	select {
	case <-open:
		return misses, nil
	case <-ctx.Done():
		return "", fmt.Errorf("%w: %w", pando.ErrUnavailable, ctx.Err())
	}
}

func (p *publishing) times(h pando.HostName) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[h]
}

// steered is a control with a service in rotation, and hosts.
func steered(names ...pando.HostName) (*Control, *publishing) {
	p := &publishing{asked: map[pando.HostName]int{}, silent: map[pando.HostName]chan struct{}{}}
	c := New(Config{Peers: p, Clock: wall.Clock{}, IDs: &decidetest.Counting{}, Registry: sim.NewRegistry(1, 0),
		Log: slog.New(slog.DiscardHandler)})
	for n, h := range names {
		c.put(pando.StoreRevision(n+1), pando.Host{Name: h})
	}
	c.rotate(10, "web-1")
	return c, p
}

// put commits records, and wakes the callers that wait for them.
func (c *Control) put(at pando.StoreRevision, all ...pando.Stored) {
	b := pando.Batch{Revision: at}
	for _, v := range all {
		text, err := world.Encode(v)
		if err != nil {
			panic(err)
		}
		b.Changes = append(b.Changes, pando.Record{Key: v.Key(), Value: text, Modified: at})
	}
	c.mirror.Take(b, false)
}

// rotate commits a service with instances in rotation, and its endpoints.
func (c *Control) rotate(at pando.StoreRevision, ids ...pando.InstanceID) {
	svc := pando.Service{ServiceKey: web, Current: 1, Target: 1, VIP4: pando.VIPs4.Addr().Next()}
	all := []pando.Stored{svc}
	var instances []pando.Instance
	for _, id := range ids {
		i := pando.Instance{ID: id, Service: web, Host: "h1", Revision: 1,
			Phase: pando.PhaseInRotation}
		instances, all = append(instances, i), append(all, i)
	}
	c.put(at, append(all, pando.EndpointsOf(svc, pando.Spec{}, instances))...)
}

func confirmedBy(t *testing.T, c *Control, wait time.Duration) (yes, no []pando.HostName) {
	t.Helper()
	all, err := c.Steering(t.Context(), []pando.ServiceKey{web}, wait)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if h.Confirmed {
			yes = append(yes, h.Host)
		} else {
			no = append(no, h.Host)
		}
	}
	return yes, no
}

// A host with a late table holds back the answer until the table is in force.
func TestSteeringWaitsForTheLastHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := steered("h1", "h2", "h3")
		late := make(chan struct{})
		p.silent["h2"] = late
		answered := make(chan []pando.HostName)
		go func() {
			yes, _ := confirmedBy(t, c, pando.SteeringWaitMax)
			answered <- yes
		}()
		time.Sleep(pando.SteeringWaitMax / 2)
		select {
		case yes := <-answered:
			t.Fatalf("answered before the last host: %v", yes)
		default:
		}
		close(late)
		want := []pando.HostName{"h1", "h2", "h3"}
		if yes := <-answered; !slices.Equal(yes, want) {
			t.Errorf("confirmed by %v, want %v", yes, want)
		}
		for range 5 {
			confirmedBy(t, c, 0)
		}
		for _, h := range want {
			if n := p.times(h); n != 1 {
				t.Errorf("%s was asked %d times about one change", h, n)
			}
		}
		c.put(20, pando.Host{Name: "h2"}) // it joins again, perhaps without its tables
		c.rotate(21, "web-1", "web-2")
		confirmedBy(t, c, 0)
		if p.times("h1") != 2 || p.times("h2") != 2 {
			t.Errorf("after a change h1 was asked %d times, h2 %d", p.times("h1"), p.times("h2"))
		}
		c.put(30, pando.Host{Name: "h2"})
		confirmedBy(t, c, 0)
		if p.times("h1") != 2 || p.times("h2") != 3 {
			t.Errorf("after h2 joined again h1 was asked %d times, h2 %d", p.times("h1"), p.times("h2"))
		}
	})
}

// A host without an answer is named when the wait is over. It is left out once its lease ends.
func TestSteeringNamesASilentHostUntilItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := steered("h1", "h2")
		p.silent["h2"] = make(chan struct{})
		began := time.Now()
		yes, no := confirmedBy(t, c, 2*time.Second)
		if !slices.Equal(yes, []pando.HostName{"h1"}) || !slices.Equal(no, []pando.HostName{"h2"}) ||
			time.Since(began) != 2*time.Second {
			t.Errorf("confirmed by %v, not by %v, after %s", yes, no, time.Since(began))
		}
		go func() {
			time.Sleep(time.Second)
			c.mirror.Take(pando.Batch{Revision: 40, Changes: []pando.Record{
				{Key: pando.Host{Name: "h2"}.Key(), Modified: 40}}}, false)
		}()
		began = time.Now()
		yes, no = confirmedBy(t, c, pando.SteeringWaitMax)
		if len(yes) != 1 || no != nil || time.Since(began) != time.Second {
			t.Errorf("confirmed by %v, not by %v, after %s", yes, no, time.Since(began))
		}
	})
}

// A service may serve a moment before control writes its endpoints. Hosts prove nothing until then.
func TestSteeringWaitsForTheEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := steered("h1")
		c.put(20, pando.Instance{ID: "web-2", Service: web, Host: "h1", Revision: 1,
			Phase: pando.PhaseInRotation})
		if _, no := confirmedBy(t, c, time.Second); len(no) != 1 || p.times("h1") != 0 {
			t.Errorf("without new endpoints, not confirmed by %v", no)
		}
		c.rotate(21, "web-1", "web-2")
		if yes, no := confirmedBy(t, c, 0); len(yes) != 1 || no != nil {
			t.Errorf("with new endpoints, confirmed by %v and not by %v", yes, no)
		}
	})
}

func TestSteeringRefusesWhatItCannotAnswer(t *testing.T) {
	c, _ := steered("h1")
	for name, one := range map[string]struct {
		of   []pando.ServiceKey
		wait time.Duration
		want error
	}{
		"no service":      {nil, 0, pando.ErrInvalid},
		"an unknown one":  {[]pando.ServiceKey{pando.DefaultService("none")}, 0, pando.ErrNotFound},
		"a longer wait":   {[]pando.ServiceKey{web}, pando.SteeringWaitMax + 1, pando.ErrInvalid},
		"a negative wait": {[]pando.ServiceKey{web}, -1, pando.ErrInvalid},
	} {
		if _, err := c.Steering(t.Context(), one.of, one.wait); !errors.Is(err, one.want) {
			t.Errorf("%s: %v, want %v", name, err, one.want)
		}
	}
}

// A host that leaves out a part says so. It is asked again until the wait ends, and by the next
// caller.
func TestAHostThatSteersInPartSaysWhatItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := steered("one", "two")
		p.misses = map[pando.HostName]string{"two": "web: port 9090 is taken"}
		all, err := c.Steering(t.Context(), []pando.ServiceKey{web}, 2500*time.Millisecond)
		if err != nil || len(all) != 2 || all[0].Partly || !all[1].Confirmed || !all[1].Partly ||
			all[1].Reason != "web: port 9090 is taken" {
			t.Fatalf("got %+v, %v", all, err)
		}
		if n := p.times("two"); n < 2 || n > 4 {
			t.Errorf("it was asked %d times in 2.5 s, want once a second", n)
		}
		p.mu.Lock()
		p.misses = nil
		p.mu.Unlock()
		if all, err = c.Steering(t.Context(), []pando.ServiceKey{web}, time.Second); err != nil || all[1].Partly {
			t.Errorf("after its cure: %+v, %v", all, err)
		}
	})
}
