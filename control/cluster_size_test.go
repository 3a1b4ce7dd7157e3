package control

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// grown returns the world of a cluster in which every service has ten instances in rotation.
func grown(hosts, services int) *world.World {
	w := world.New()
	spec := pando.Spec{Command: []string{"run"}, Scale: pando.Scale{Min: 10, Max: 20}}
	spec.Resources.CPUs = 0.1
	for n := range hosts {
		w.Committed(pando.Txn{Put: []pando.Stored{
			pando.Host{Name: pando.HostName(fmt.Sprintf("h%04d", n)), Slot: n, CPUs: 64},
		}}, 1)
	}
	first := binary.BigEndian.Uint32(pando.VIPs4.Addr().AsSlice()) + 2
	for n := range services {
		key := pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%05d", n)))
		home := pando.HostName(fmt.Sprintf("h%04d", n%hosts))
		spec.Name = key.Name
		var vip [4]byte
		binary.BigEndian.PutUint32(vip[:], first+uint32(n))
		put := []pando.Stored{
			pando.Revision{Service: key, Number: 1, Spec: spec.WithDefaults()},
			pando.Service{
				ServiceKey: key, Current: 1, Target: 1, Latest: 1, Home: home,
				VIP4: netip.AddrFrom4(vip), VIP6: pando.VIPs6.Addr(), Phase: pando.ServiceServing,
			},
		}
		for i := range 10 {
			put = append(put, pando.Instance{
				ID: pando.InstanceID(fmt.Sprintf("%s-%d", key.Name, i)), Service: key, Host: home,
				Revision: 1, Phase: pando.PhaseInRotation, Since: t0, Born: t0.Add(time.Duration(i)),
			})
		}
		w.Committed(pando.Txn{Put: put}, 1)
	}
	return w
}

// memoryOf returns the bytes that f allocates.
func memoryOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Nothing that happens often reads the whole cluster. A placement, an ask, a commit and a host
// that joins cost the same beside 100,000 instances of 10,000 services as beside 1,000.
func TestNothingScansTheClusterForACommitAPlacementOrALook(t *testing.T) {
	if testing.Short() && raceDetector {
		t.Skip("a world of 100,000 instances is slow under the race detector")
	}
	type cost struct{ placed, asked, taken, listed uint64 }
	measure := func(services int) (c cost) {
		const hosts = 1000
		w, ids := grown(hosts, services), &decidetest.Counting{}
		fresh := pando.DefaultService("fresh")
		spec := pando.Spec{Name: "fresh", Command: []string{"run"}}.WithDefaults()
		w.Committed(pando.Txn{Put: []pando.Stored{
			pando.Service{ServiceKey: fresh, Target: 1, Latest: 1},
			pando.Revision{Service: fresh, Number: 1, Spec: spec},
		}}, 2)
		c.placed = memoryOf(func() {
			if txn, _ := decide.Decide(w, fresh, t0, ids); len(txn.Put) < 2 {
				t.Fatalf("a new service beside %d others is not placed: %v", services, txn.Put)
			}
		})
		ask := pando.Intent{
			ID: "ask", Service: pando.DefaultService("s00007"), Verb: pando.VerbReplicate,
			By: pando.Asker{Kind: pando.AskerInstance, Name: "s00007-0"},
		}.Become(pando.IntentAsked, t0, "load")
		c.asked = memoryOf(func() { decide.Decide(w, ask.Service, t0, ids, ask) })

		v := mirror.New(nil, sim.Clock{}, nil, slog.New(slog.DiscardHandler), "")
		v.World = w
		i := w.Of(ask.Service)[0]
		i.Reason = "changed"
		batch := pando.Batch{Changes: recordsOf(t, 3, i), Revision: 3}
		c.taken = memoryOf(func() { v.Take(batch, false) })
		queued(v)
		h := w.Hosts["h0007"].V
		h.Leaving = true
		v.Take(pando.Batch{Changes: recordsOf(t, 4, h), Revision: 4}, false)
		if marked, most := queued(v), services/hosts+2; marked > most {
			t.Errorf("a host's change marks %d of %d services, want at most %d", marked, services, most)
		}
		c.listed = memoryOf(func() { _ = w.LoadOn("h0007") })
		return c
	}
	few, all := measure(1000), measure(10_000)
	for what, c := range map[string][2]uint64{
		"a placement": {few.placed, all.placed}, "an ask": {few.asked, all.asked},
		"a commit": {few.taken, all.taken}, "the load of a host": {few.listed, all.listed},
	} {
		if c[1] > 2*c[0]+4096 {
			t.Errorf("%s takes %d bytes beside 10,000 services, %d beside 1,000", what, c[1], c[0])
		}
	}
}

// An ask of a service with a home looks at that host alone.
func TestAnAskBesideManyHostsCostsAsBesideFew(t *testing.T) {
	asked := func(hosts int) uint64 {
		w, ids := grown(hosts, hosts), &decidetest.Counting{}
		ask := pando.Intent{
			ID: "ask", Service: pando.DefaultService("s00007"), Verb: pando.VerbReplicate,
			By: pando.Asker{Kind: pando.AskerInstance, Name: "s00007-0"},
		}.Become(pando.IntentAsked, t0, "load")
		return memoryOf(func() {
			if txn, _ := decide.Decide(w, ask.Service, t0, ids, ask); len(txn.Put) < 3 {
				t.Errorf("the ask is not granted: %v", txn.Put)
			}
		})
	}
	if few, many := asked(10), asked(1000); many > few+8192 {
		t.Errorf("an ask takes %d bytes beside 1,000 hosts, %d beside 10", many, few)
	}
}

// A decision about a service that spreads, and that moves nothing, looks at few hosts.
func TestADecisionThatMovesNothingCostsTheSameBesideManyHosts(t *testing.T) {
	decided := func(hosts int, phase pando.Phase) uint64 {
		w, ids := grown(hosts, 10), &decidetest.Counting{}
		key := pando.DefaultService("s00007")
		spec, _ := w.SpecOf(key, 1)
		spec.Place.Spread = pando.SpreadHost
		svc := w.Services[key].V
		svc.Home = ""
		first := w.Of(key)[0]
		first.Phase = phase
		put := []pando.Stored{svc, first, pando.Revision{Service: key, Number: 1, Spec: spec}}
		for _, h := range w.Hosts {
			h.V.Tunnel = true
			put = append(put, h.V)
		}
		w.Committed(pando.Txn{Put: put}, 2)
		for range 3 { // the first decisions write the record of the endpoints
			txn, _ := decide.Decide(w, key, t0, ids)
			w.Committed(txn, 3)
		}
		return memoryOf(func() {
			if txn, _ := decide.Decide(w, key, t0, ids); len(txn.Put) > 0 {
				t.Errorf("it writes %v", txn.Put)
			}
		})
	}
	for _, phase := range []pando.Phase{pando.PhaseInRotation, pando.PhaseStarting} {
		if few, many := decided(10, phase), decided(1000, phase); many > few+8192 {
			t.Errorf("%s: a decision takes %d bytes beside 1,000 hosts, %d beside 10", phase, many, few)
		}
	}
}

// recordsOf encodes values as a watch delivers them.
func recordsOf(t *testing.T, at pando.StoreRevision, all ...pando.Stored) (out []pando.Record) {
	t.Helper()
	for _, v := range all {
		b, err := world.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pando.Record{Key: v.Key(), Value: b, Modified: at})
	}
	return out
}

// queued takes all services out of the queue of decisions, and returns their number.
func queued(m *mirror.Mirror) (n int) {
	for {
		if _, more := m.Next(); !more {
			return n
		}
		n++
	}
}
