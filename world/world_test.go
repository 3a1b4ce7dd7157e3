package world

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
)

func TestAWorldListsWhatBelongsToAServiceInOrder(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	w := New()
	services := []pando.ServiceKey{{Tenant: pando.DefaultTenant, Name: "a"},
		{Tenant: pando.DefaultTenant, Name: "b"}}
	created := map[string]pando.StoreRevision{}
	for at := pando.StoreRevision(1); at < 500; at++ {
		id, s := fmt.Sprintf("%02d", dice.IntN(40)), services[0]
		if id >= "20" {
			s = services[1]
		}
		i, d := pando.Intent{ID: pando.IntentID(id), Service: s}, pando.Decision{ID: id, Service: s}
		if dice.IntN(3) == 0 {
			delete(created, id)
			w.Committed(pando.Txn{Delete: []pando.Key{i.Key(), d.Key()}}, at)
		} else {
			if created[id] == 0 {
				created[id] = at
			}
			w.Committed(pando.Txn{Put: []pando.Stored{i, d}}, at)
		}
		for _, s := range services {
			var intents []pando.IntentID
			for _, v := range w.Intents {
				if v.V.Service == s {
					intents = append(intents, v.V.ID)
				}
			}
			slices.SortFunc(intents, func(a, b pando.IntentID) int {
				return cmp.Compare(created[string(a)], created[string(b)])
			})
			if got := w.IntentsOf(s); !slices.EqualFunc(
				got, intents, func(i pando.Intent, id pando.IntentID) bool { return i.ID == id }) {
				t.Fatalf("revision %d: intents of %s are %v, want %v", at, s, got, intents)
			}
			got := w.DecisionsOf(s)
			if !slices.IsSortedFunc(got, func(a, b pando.Decision) int { return cmp.Compare(created[a.ID], created[b.ID]) }) ||
				len(got) != len(intents) {
				t.Fatalf("revision %d: decisions about %s are %v, want %d in order", at, s, got, len(intents))
			}
		}
	}
}

// Of and On list the instances that a scan of all instances finds. Records arrive, change their
// birth or host, and go.
func TestAWorldFindsTheInstancesOfAServiceAndOfAHost(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	w := New()
	services := []pando.ServiceKey{pando.DefaultService("a"), pando.DefaultService("b"),
		{Tenant: "t", Name: "a"}}
	hosts := []pando.HostName{"h1", "h2"}
	scan := func(want func(pando.Instance) bool) (out []pando.Instance) {
		for _, v := range w.Instances {
			if want(v.V) {
				out = append(out, v.V)
			}
		}
		slices.SortFunc(out, byBirth)
		return out
	}
	same := func(a, b pando.Instance) bool {
		return a.Key() == b.Key() && a.Phase == b.Phase && a.Born.Equal(b.Born)
	}
	for at := pando.StoreRevision(1); at < 3000; at++ {
		i := pando.Instance{
			ID: pando.InstanceID(fmt.Sprintf("%02d", dice.IntN(30))), Service: services[dice.IntN(3)],
			Host:  hosts[dice.IntN(2)],
			Phase: []pando.Phase{pando.PhasePlaced, pando.PhaseInRotation}[dice.IntN(2)],
			Born:  time.Unix(int64(dice.IntN(20)), 0),
		}
		was, there := w.Instances[i.ID]
		switch n := dice.IntN(4); {
		case n == 0 && there:
			w.Committed(pando.Txn{Delete: []pando.Key{was.V.Key()}}, at)
		// Moved: the same commit deletes the record of the old key.
		case n == 1 && there && was.V.Key() != i.Key():
			w.Committed(pando.Txn{Put: []pando.Stored{i}, Delete: []pando.Key{was.V.Key()}}, at)
			if got, ok := w.Instances[i.ID]; !ok || got.V.Key() != i.Key() {
				t.Fatalf("revision %d: %s moved from %s and is lost: %+v", at, i.Key(), was.V.Key(), got)
			}
		default:
			w.Committed(pando.Txn{Put: []pando.Stored{i}}, at)
		}
		for _, s := range services {
			got, want := w.Of(s), scan(func(i pando.Instance) bool { return i.Service == s })
			if !slices.EqualFunc(got, want, same) {
				t.Fatalf("revision %d: instances of %s are %v, want %v", at, s, got, want)
			}
		}
		for _, h := range hosts {
			got, want := w.On(h), scan(func(i pando.Instance) bool { return i.Host == h })
			if !slices.EqualFunc(got, want, same) {
				t.Fatalf("revision %d: instances on %s are %v, want %v", at, h, got, want)
			}
		}
	}
}

// Of costs as much as the service's own instances, not as much as the cluster.
func TestAQuestionAboutOneServiceCostsNoScan(t *testing.T) {
	w := New()
	const others = 20_000
	for n := range others {
		w.Committed(pando.Txn{Put: []pando.Stored{pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("web-", n)), Service: pando.DefaultService("web"), Host: "h1",
			Born: time.Unix(int64(n), 0),
		}}}, 1)
	}
	w.Committed(pando.Txn{
		Put: []pando.Stored{pando.Instance{ID: "db-1", Service: pando.DefaultService("db"), Host: "h2"}},
	}, 2)
	var got []pando.Instance
	best := time.Hour
	for range 50 { // best of many: other work on the machine only slows a round
		begun := time.Now()
		got = append(w.Of(pando.DefaultService("db")), w.On("h2")...)
		best = min(best, time.Since(begun))
	}
	if best > 50*time.Microsecond || len(got) != 2 {
		t.Errorf("%d instances took %s beside %d others, want 2 within 50 µs", len(got), best, others)
	}
}

func TestAWorldKnowsWhatItHasTakenOver(t *testing.T) {
	w, s := New(), pando.Service{ServiceKey: pando.ServiceKey{Tenant: pando.DefaultTenant, Name: "a"}}
	b, err := Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	record := func(at pando.StoreRevision) pando.Record {
		return pando.Record{Key: s.Key(), Value: b, Modified: at}
	}
	gone := func(at pando.StoreRevision) pando.Record {
		return pando.Record{Key: s.Key(), Modified: at}
	}
	know := func(want bool, r pando.Record) {
		t.Helper()
		if w.Knows(r) != want {
			t.Errorf("%s of revision %d (deleted: %v) is known: %v, want %v",
				r.Key, r.Modified, r.Value == nil, !want, want)
		}
	}
	know(false, record(0))
	w.Committed(pando.Txn{Put: []pando.Stored{s}}, 5)
	know(true, record(5))
	know(true, record(4))
	know(false, record(6))
	know(false, gone(6))
	w.Committed(pando.Txn{Delete: []pando.Key{s.Key()}}, 7)
	know(true, gone(7))
	know(false, gone(8))
	know(false, record(8))
}

func TestDecodeReadsWhatEncodeWroteAndNothingElse(t *testing.T) {
	want := pando.Member{Name: "h<1>", Address: netip.MustParseAddr("192.0.2.1")}
	b, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(b), " " + string(b) + "\n"} {
		var got pando.Member
		err := Decode(pando.Record{Key: want.Key(), Value: []byte(text)}, &got)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, %v", text, got, err)
		}
	}
	newer := fmt.Sprintf(`{"layout":%d,"value":{}}`, currentLayout+1)
	for _, text := range []string{"", "[]", string(b[:len(b)-1]), string(b) + "}", newer,
		string(opening) + `"x"}`, string(opening) + `{},"value":{"name":7}}`} {
		err := Decode(pando.Record{Key: want.Key(), Value: []byte(text)}, &pando.Member{})
		if err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// encoded makes a record as a member could write it: any value below any key.
func encoded(t *testing.T, k pando.Key, v any, at pando.StoreRevision) pando.Record {
	t.Helper()
	b, err := Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return pando.Record{Key: k, Value: b, Created: at, Modified: at}
}

func TestAWorldBelievesTheKeyAndNotTheValue(t *testing.T) {
	web := pando.DefaultService("web")
	at := func(slot int) pando.Host {
		h := pando.Host{Name: pando.HostName(fmt.Sprintf("h%d", slot)), Slot: slot,
			Address: netip.MustParseAddr(fmt.Sprintf("10.126.0.%d", slot))}
		h.Instances4, h.Instances6 = pando.InstanceRange(slot)
		return h
	}
	mine := pando.Instance{ID: "web-1", Service: web, Host: "h1", Phase: pando.PhaseInRotation}
	w := New()
	good := []pando.Record{encoded(t, mine.Key(), mine, 1), encoded(t, pando.HostKey("h1"), at(1), 1),
		encoded(t, pando.HostKey("h2"), at(2), 1)}
	if err := w.Apply(good, 1); err != nil {
		t.Fatal(err)
	}
	dead := mine
	dead.Phase = pando.PhaseDead
	namesake := dead
	namesake.Host = "h2"
	far := at(2)
	far.Instances4 = netip.MustParsePrefix("8.8.0.0/16")
	elsewhere := at(1)
	elsewhere.Address = at(2).Address
	other := pando.ServiceKey{Tenant: "bank", Name: "vault"}
	for what, r := range map[string]pando.Record{
		"another host's instance":        encoded(t, "/pando/instance/default/web/h2/web-1", dead, 2),
		"an instance with a name in use": encoded(t, namesake.Key(), namesake, 2),
		"another host's record":          encoded(t, pando.HostKey("h2"), elsewhere, 2),
		"a host with foreign prefixes":   encoded(t, pando.HostKey("h2"), far, 2),
		"a host in a slot that none has": encoded(t, pando.HostKey("h2"),
			pando.Host{Name: "h2", Slot: pando.HostSlots}, 2),
		"another service's head": encoded(t, pando.HeadKey(web), pando.StateHead{Service: other}, 2),
		"another service's intent": encoded(t, "/pando/intent/default/web/i1",
			pando.Intent{ID: "i1", Service: other}, 2),
		"an intent with another name": encoded(t, "/pando/intent/default/web/i1",
			pando.Intent{ID: "i2", Service: web}, 2),
		"another service's decision": encoded(t, "/pando/decision/default/web/d1",
			pando.Decision{ID: "d1", Service: other}, 2),
		"another member's record": encoded(t, pando.MemberKey("h2"), pando.Member{Name: "h1"}, 2),
		"another service's revision": encoded(t, pando.RevisionKey(web, 1),
			pando.Revision{Service: other, Number: 1}, 2),
		"another service's record": encoded(t, web.Key(), pando.Service{ServiceKey: other}, 2),
	} {
		if err := w.Apply([]pando.Record{r}, 2); err == nil {
			t.Errorf("%s is believed", what)
		}
	}
	if got := w.Instances["web-1"].V; got.Host != "h1" || got.Phase != pando.PhaseInRotation {
		t.Errorf("the instance is now %+v", got)
	}
	if w.Hosts["h1"].V != at(1) || w.Hosts["h2"].V != at(2) {
		t.Errorf("the hosts are now %+v", w.Hosts)
	}
	if n := len(w.Heads) + len(w.Intents) + len(w.Decisions) + len(w.Members) + len(w.Revisions) +
		len(w.Services); n != 0 {
		t.Errorf("%d forged records are there", n)
	}
}

func TestAMemberVouchesForItsOwnAddresses(t *testing.T) {
	m := pando.Member{Name: "h2", Slot: 2, Address: netip.MustParseAddr("10.126.0.2")}
	good := pando.Host{Name: "h2", Slot: 2, Address: m.Address}
	good.Instances4, good.Instances6 = pando.InstanceRange(2)
	if err := m.Vouches(good); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*pando.Host){
		"name": func(h *pando.Host) { h.Name = "h1" }, "slot": func(h *pando.Host) {
			h.Slot = 1
			h.Instances4, h.Instances6 = pando.InstanceRange(1)
		},
		"address":  func(h *pando.Host) { h.Address = netip.MustParseAddr("10.126.0.1") },
		"prefix":   func(h *pando.Host) { h.Instances4 = netip.MustParsePrefix("8.8.0.0/16") },
		"prefix 6": func(h *pando.Host) { _, h.Instances6 = pando.InstanceRange(1) },
	} {
		h := good
		change(&h)
		if m.Vouches(h) == nil {
			t.Errorf("it vouches for another %s", what)
		}
	}
	m.PublicKey = pando.PublicKeyHash([]byte("a"))
	if m.Admits([]byte("a")) != nil || m.Admits([]byte("b")) == nil {
		t.Error("it does not admit its own key, or admits another")
	}
}

// A decision appends to the lists of its service. Lists without room would be copied by that.
func TestListsHaveRoomForADecision(t *testing.T) {
	w := New()
	var put []pando.Stored
	for n := range 100 {
		put = append(put, pando.Instance{ID: pando.InstanceID(fmt.Sprint("web-", n)),
			Service: pando.DefaultService("web"), Host: "h1"})
		put = append(put, pando.Intent{ID: pando.IntentID(fmt.Sprintf("%026d", n)),
			Service: pando.DefaultService("web")})
	}
	w.Committed(pando.Txn{Put: put}, 1)
	s := pando.DefaultService("web")
	if all := w.Of(s); len(all) != 100 || cap(all)-len(all) < spare {
		t.Errorf("%d instances with room for %d", len(all), cap(all))
	}
	if all := w.IntentsOf(s); len(all) != 100 || cap(all)-len(all) < spare {
		t.Errorf("%d intents with room for %d", len(all), cap(all))
	}
	if all := w.Of(pando.DefaultService("none")); all != nil {
		t.Errorf("a service without instances has %v", all)
	}
}

func TestAHostIsKnownByItsAddresses(t *testing.T) {
	w := New()
	a := netip.MustParseAddr("203.0.113.7")
	if w.HasHostAt(a) {
		t.Error("an empty cluster has a host")
	}
	w.Members["h1"] = Versioned[pando.Member]{V: pando.Member{Name: "h1", Address: a}}
	if !w.HasHostAt(a) || w.HasHostAt(a.Next()) {
		t.Error("a member is not known by its address alone")
	}
}
