package branch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/state"
)

// A commit is on two hosts before it is acknowledged, and the death of its host loses nothing.
func TestACommitWithTwoCopiesSurvivesItsHost(t *testing.T) {
	inTown(t, 3, 2, func(c *town) {
		c.await("whole", c.whole)
		a := c.hosts["h1"]
		c.create(a, "web-1")
		for n := range 5 {
			if err := a.hit("web-1", fmt.Sprint("line ", n)); err != nil {
				t.Fatal(err)
			}
		}
		a.kill()
		a.expire()
		c.await("moved", func() bool { return c.kept().Host != "h1" })
		keeper := c.hosts[c.kept().Host]
		c.await("merged", func() bool { return keeper.read("hits") == "5" })
		c.await("whole again", c.whole)
		for _, h := range c.kept().Copies {
			if got := c.hosts[h].read("hits"); got != "5" {
				t.Errorf("the copy on %s has %s hits", h, got)
			}
		}
		// The former keeper comes back, gives its role up and doubles nothing.
		a.start()
		c.decide()
		c.await("tidy", func() bool {
			left, err := state.Branches(a.disk, web)
			return err == nil && len(left) <= 1
		})
		if c.kept().Host == "h1" || keeper.read("hits") != "5" {
			t.Errorf("the keeper is %s, main has %s hits", c.kept().Host, keeper.read("hits"))
		}
	})
}

// Instances on several hosts push into one main.
func TestInstancesOnSeveralHostsPushIntoOneMain(t *testing.T) {
	inTown(t, 4, 2, func(c *town) {
		c.await("whole", c.whole)
		var all sync.WaitGroup
		for n, name := range []pando.HostName{"h1", "h2", "h3", "h4"} {
			h, i := c.hosts[name], pando.InstanceID(fmt.Sprint("web-", n))
			c.create(h, i)
			all.Go(func() {
				for m := range 10 {
					if err := errors.Join(h.hit(i, fmt.Sprint(i, " ", m)), h.push(i)); err != nil {
						t.Errorf("%s on %s: %v", i, name, err)
					}
				}
			})
		}
		all.Wait()
		for _, h := range c.kept().Copies {
			if got := c.hosts[h].read("hits"); got != "40" {
				t.Errorf("the copy on %s has %s hits", h, got)
			}
		}
		// A new instance on a host without a copy begins with main.
		h := c.hosts["h4"]
		b, err := h.running().Reopen(c.ctx, web, "web-9", 1)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := b.Get("hits"); err != nil || string(v.Bytes) != "40" {
			t.Errorf("a new instance reads %s: %v", v.Bytes, err)
		}
	})
}

func TestACommitWaitsForItsCopies(t *testing.T) {
	inTown(t, 1, 2, func(c *town) {
		a := c.hosts["h1"]
		c.create(a, "web-1")
		began := time.Now()
		err := a.hit("web-1", "one")
		if !errors.Is(err, ErrUncopied) || time.Since(began) < copyWaitMax {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		c.hosts["h2"] = &townHost{town: c, name: "h2", disk: sim.NewObjects()}
		c.hosts["h2"].start()
		c.await("whole", c.whole)
		if err := a.running().Copied(c.ctx, web, "web-1"); err != nil {
			t.Errorf("with two hosts: %v", err)
		}
	})
}

// A host with a lease that takes nothing is reported, dropped and replaced.
func TestASilentCopyIsReplaced(t *testing.T) {
	inTown(t, 3, 2, func(c *town) {
		c.await("whole", c.whole)
		other := c.kept().Copies[1]
		c.change(func() { c.cut[[2]pando.HostName{"h1", other}] = true })
		a := c.hosts["h1"]
		c.create(a, "web-1")
		deciding := make(chan struct{})
		go func() {
			defer close(deciding)
			c.await("replaced", func() bool { return c.whole() && !c.kept().Holds(other) })
		}()
		if err := a.hit("web-1", "one"); err != nil {
			t.Error(err)
		}
		<-deciding
	})
}

// TakeState refuses shipments that a host may not send.
func TestAForeignShipmentIsRefused(t *testing.T) {
	inTown(t, 4, 2, func(c *town) {
		c.await("whole", c.whole)
		send := func(to, from pando.HostName, s pando.Shipment) (pando.Receipt, error) {
			var b strings.Builder
			if err := state.WriteBundle(&b, s, sim.NewObjects(), nil); err != nil {
				t.Fatal(err)
			}
			return c.hosts[to].running().TakeState(c.ctx, from, strings.NewReader(b.String()))
		}
		holds := c.kept().Copies
		var stranger pando.HostName
		for name := range c.hosts {
			if !slices.Contains(holds, name) {
				stranger = name
			}
		}
		ask := pando.Shipment{Service: web, From: stranger, Epoch: c.kept().Epoch}
		if _, err := send(holds[0], stranger, ask); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("a host without an instance: %v", err)
		}
		ask.From = holds[1]
		if _, err := send(holds[0], stranger, ask); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("under another's name: %v", err)
		}
		ask.Refs = map[string]pando.ObjectID{"edge/x": {1}}
		if _, err := send(holds[0], holds[1], ask); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("a ref outside the branches: %v", err)
		}
		ask.Refs = nil
		if got, err := send(stranger, holds[1], ask); err != nil || !got.Gone {
			t.Errorf("to a host without a copy: %+v, %v", got, err)
		}
		ask.Epoch++
		if _, err := send(stranger, holds[1], ask); !errors.Is(err, pando.ErrNotReady) {
			t.Errorf("by a newer record: %v", err)
		}
		cut := strings.NewReader("\x02{")
		if _, err := c.hosts[holds[0]].running().TakeState(c.ctx, holds[1], cut); err == nil {
			t.Error("a shipment that is cut off was taken")
		}
	})
}
