package world

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
)

// A world's sums and sets are those that a scan of all records finds. Services, revisions,
// instances and hosts arrive in any order, change and go.
func TestAWorldCountsLoadsHomesAndAddressesAsAScanDoes(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 6))
	w := New()
	hosts := []pando.HostName{"h1", "h2", "h3"}
	services := []pando.ServiceKey{
		pando.DefaultService("a"), pando.DefaultService("b"), pando.DefaultService("c"),
	}
	for at := pando.StoreRevision(1); at < 4000; at++ {
		s := services[dice.IntN(len(services))]
		var v pando.Stored
		switch dice.IntN(5) {
		case 4:
			v = pando.Host{Name: hosts[dice.IntN(3)]}
		case 0:
			v = pando.Revision{Service: s, Number: 1 + dice.IntN(2), Spec: pando.Spec{
				Resources: pando.Resources{CPUs: 0.1 * float64(dice.IntN(9)), MemoryBytes: dice.Int64N(99)},
			}}
		case 1:
			v = pando.Service{
				ServiceKey: s, Home: hosts[dice.IntN(3)],
				VIP4:  netip.AddrFrom4([4]byte{10, 0, s.Name[0], byte(1 + dice.IntN(250))}),
				Phase: []pando.ServicePhase{pando.ServiceServing, pando.ServiceRolling}[dice.IntN(2)],
			}
		default:
			v = pando.Instance{
				ID:      pando.InstanceID(fmt.Sprint(s.Name, dice.IntN(9))),
				Service: s, Host: hosts[dice.IntN(3)], Revision: 1 + dice.IntN(2),
			}
		}
		t2 := pando.Txn{Put: []pando.Stored{v}}
		if was, ok := w.byKey[v.Key()]; ok && dice.IntN(3) == 0 {
			t2 = pando.Txn{Delete: []pando.Key{was.value.Key()}}
		}
		w.Committed(t2, at)
		scan(t, w, hosts, at)
	}
}

// scan compares the ledgers of a world with its records.
func scan(t *testing.T, w *World, hosts []pando.HostName, at pando.StoreRevision) {
	t.Helper()
	if want := slices.Sorted(maps.Keys(w.Hosts)); !slices.Equal(w.HostNames(), want) {
		t.Fatalf("revision %d: the hosts are %v, want %v", at, w.HostNames(), want)
	}
	for _, h := range hosts {
		var want weight
		concerned := map[pando.ServiceKey]bool{}
		for _, i := range w.Instances {
			if i.V.Host == h {
				spec, _ := w.SpecOf(i.V.Service, i.V.Revision)
				want = want.plus(weightOf(spec.Resources))
				concerned[i.V.Service] = true
			}
		}
		for _, s := range w.Services {
			if s.V.Home == h || s.V.Phase != pando.ServiceServing {
				concerned[s.V.ServiceKey] = true
			}
			if of, ok := w.HasVIP(s.V.VIP4); !ok || w.Services[of].V.VIP4 != s.V.VIP4 {
				t.Fatalf("revision %d: %s of %s has no owner", at, s.V.VIP4, s.V.ServiceKey)
			}
		}
		if got := w.loads[h]; got != want || w.LoadOn(h).Instances != w.CountOn(h) {
			t.Fatalf("revision %d: the load of %s is %+v, want %+v", at, h, got, want)
		}
		got := w.Concerned(h)
		for _, s := range got {
			if !concerned[s] {
				t.Fatalf("revision %d: %s does not concern %s", at, h, s)
			}
		}
		if len(got) != len(concerned) || !slices.IsSortedFunc(got, pando.ServiceKey.Compare) {
			t.Fatalf("revision %d: %s concerns %v, want %v", at, h, got, concerned)
		}
	}
}

// A service stays apart from another one also while that one's placement is on its way.
func TestHostsOfAServiceIncludeThoseOnTheirWay(t *testing.T) {
	w, web, db := New(), pando.DefaultService("web"), pando.DefaultService("db")
	at := func(s pando.ServiceKey, id pando.InstanceID, h pando.HostName) pando.Txn {
		return pando.Txn{Put: []pando.Stored{pando.Instance{ID: id, Service: s, Host: h}}}
	}
	w.Committed(at(web, "web-1", "h1"), 1)
	next := at(web, "web-2", "h2")
	w.Reserve(next)
	w.Reserve(at(db, "db-1", "h3"))
	for _, step := range []func(){func() {}, func() { w.Committed(next, 2); w.Release(next) }} {
		step()
		if got := w.HostsOf(web); len(got) != 2 || !got["h1"] || !got["h2"] {
			t.Errorf("web is on %v", got)
		}
	}
	third := at(web, "web-3", "h4")
	w.Reserve(third)
	w.Release(third) // its commit failed
	if got := w.HostsOf(web); got["h4"] {
		t.Errorf("web is on %v after a commit that failed", got)
	}
}

func TestAHostOfAServiceIsFoundByItsInstances(t *testing.T) {
	w, web := New(), pando.DefaultService("web")
	for n, h := range []pando.HostName{"h1", "h1", "h2"} {
		w.Committed(pando.Txn{Put: []pando.Stored{pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("web-", n)), Service: web, Host: h,
			Born: time.Unix(int64(n), 0),
		}}}, 1)
	}
	var asked []pando.HostName
	h, found := FindHost(w, web, func(h pando.HostName) bool {
		asked = append(asked, h)
		return h == "h2"
	})
	if h != "h2" || !found || len(asked) != 2 {
		t.Errorf("found %q (%v), after looking at %v", h, found, asked)
	}
	if h, found := FindHost(w, web, func(pando.HostName) bool { return false }); found {
		t.Errorf("found %q, which is not wanted", h)
	}
}
