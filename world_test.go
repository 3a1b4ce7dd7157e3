package pando

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestAWorldListsWhatBelongsToAServiceInOrder(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	w := NewWorld()
	services := []ServiceKey{{Tenant: DefaultTenant, Name: "a"}, {Tenant: DefaultTenant, Name: "b"}}
	for at := StoreRevision(1); at < 500; at++ {
		id, s := fmt.Sprintf("%02d", dice.IntN(40)), services[0]
		if id >= "20" {
			s = services[1]
		}
		i, d := Intent{ID: IntentID(id), Service: s}, Decision{ID: id, Service: s}
		if dice.IntN(3) == 0 {
			w.Committed(Txn{Delete: []Key{i.Key(), d.Key()}}, at)
		} else {
			w.Committed(Txn{Put: []Stored{i, d}}, at)
		}
		for _, s := range services {
			var intents []IntentID
			for _, v := range w.Intents {
				if v.V.Service == s {
					intents = append(intents, v.V.ID)
				}
			}
			slices.Sort(intents)
			if got := w.IntentsOf(s); !slices.EqualFunc(got, intents, func(i Intent, id IntentID) bool { return i.ID == id }) {
				t.Fatalf("revision %d: intents of %s are %v, want %v", at, s, got, intents)
			}
			got := w.DecisionsOf(s)
			if !slices.IsSortedFunc(got, func(a, b Decision) int { return cmp.Compare(a.ID, b.ID) }) || len(got) != len(intents) {
				t.Fatalf("revision %d: decisions about %s are %v, want %d in order", at, s, got, len(intents))
			}
		}
	}
}

// What Of and On list is what a scan of all instances finds, however records come, change their
// birth or host, and go.
func TestAWorldFindsTheInstancesOfAServiceAndOfAHost(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	w := NewWorld()
	services := []ServiceKey{DefaultService("a"), DefaultService("b"), {Tenant: "t", Name: "a"}}
	hosts := []HostName{"h1", "h2"}
	scan := func(want func(Instance) bool) (out []Instance) {
		for _, v := range w.Instances {
			if want(v.V) {
				out = append(out, v.V)
			}
		}
		slices.SortFunc(out, byBirth)
		return out
	}
	same := func(a, b Instance) bool { return a.Key() == b.Key() && a.Phase == b.Phase && a.Born.Equal(b.Born) }
	for at := StoreRevision(1); at < 3000; at++ {
		i := Instance{
			ID: InstanceID(fmt.Sprintf("%02d", dice.IntN(30))), Service: services[dice.IntN(3)], Host: hosts[dice.IntN(2)],
			Phase: []Phase{PhasePlaced, PhaseInRotation}[dice.IntN(2)], Born: time.Unix(int64(dice.IntN(20)), 0),
		}
		was, there := w.Instances[i.ID]
		switch n := dice.IntN(4); {
		case n == 0 && there:
			w.Committed(Txn{Delete: []Key{was.V.Key()}}, at)
		case n == 1 && there && was.V.Key() != i.Key(): // moved: the record of the old key goes with the same commit
			w.Committed(Txn{Put: []Stored{i}, Delete: []Key{was.V.Key()}}, at)
			if got, ok := w.Instances[i.ID]; !ok || got.V.Key() != i.Key() {
				t.Fatalf("revision %d: %s moved from %s and is lost: %+v", at, i.Key(), was.V.Key(), got)
			}
		default:
			w.Committed(Txn{Put: []Stored{i}}, at)
		}
		for _, s := range services {
			if got, want := w.Of(s), scan(func(i Instance) bool { return i.Service == s }); !slices.EqualFunc(got, want, same) {
				t.Fatalf("revision %d: instances of %s are %v, want %v", at, s, got, want)
			}
		}
		for _, h := range hosts {
			if got, want := w.On(h), scan(func(i Instance) bool { return i.Host == h }); !slices.EqualFunc(got, want, same) {
				t.Fatalf("revision %d: instances on %s are %v, want %v", at, h, got, want)
			}
		}
	}
}

// Of costs what the service has, not what the cluster has.
func TestAQuestionAboutOneServiceCostsNoScan(t *testing.T) {
	w := NewWorld()
	const others = 20_000
	for n := range others {
		w.Committed(Txn{Put: []Stored{Instance{
			ID: InstanceID(fmt.Sprint("web-", n)), Service: DefaultService("web"), Host: "h1", Born: time.Unix(int64(n), 0),
		}}}, 1)
	}
	w.Committed(Txn{Put: []Stored{Instance{ID: "db-1", Service: DefaultService("db"), Host: "h2"}}}, 2)
	var got []Instance
	best := time.Hour
	for range 50 { // the best of many: other work on the machine only makes a round slower
		begun := time.Now()
		got = append(w.Of(DefaultService("db")), w.On("h2")...)
		best = min(best, time.Since(begun))
	}
	if best > 50*time.Microsecond || len(got) != 2 {
		t.Errorf("%d instances took %s beside %d others, want 2 within 50 µs", len(got), best, others)
	}
}

func TestAWorldKnowsWhatItHasTakenOver(t *testing.T) {
	w, s := NewWorld(), Service{ServiceKey: ServiceKey{Tenant: DefaultTenant, Name: "a"}}
	b, err := Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	record := func(at StoreRevision) Record { return Record{Key: s.Key(), Value: b, Modified: at} }
	gone := func(at StoreRevision) Record { return Record{Key: s.Key(), Modified: at} }
	know := func(want bool, r Record) {
		t.Helper()
		if w.Knows(r) != want {
			t.Errorf("%s of revision %d (deleted: %v) is known: %v, want %v", r.Key, r.Modified, r.Value == nil, !want, want)
		}
	}
	know(false, record(0))
	w.Committed(Txn{Put: []Stored{s}}, 5)
	know(true, record(5))
	know(true, record(4))
	know(false, record(6))
	know(false, gone(6))
	w.Committed(Txn{Delete: []Key{s.Key()}}, 7)
	know(true, gone(7))
	know(false, gone(8))
	know(false, record(8))
}

func TestDecodeReadsWhatEncodeWroteAndNothingElse(t *testing.T) {
	want := Member{Name: "h<1>", Address: netip.MustParseAddr("192.0.2.1")}
	b, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(b), " " + string(b) + "\n"} {
		var got Member
		if err := Decode(Record{Key: want.Key(), Value: []byte(text)}, &got); err != nil || got != want {
			t.Errorf("%s is read as %+v, %v", text, got, err)
		}
	}
	newer := fmt.Sprintf(`{"layout":%d,"value":{}}`, currentLayout+1)
	for _, text := range []string{"", "[]", string(b[:len(b)-1]), string(b) + "}", newer, string(opening) + `"x"}`, string(opening) + `{},"value":{"name":7}}`} {
		if err := Decode(Record{Key: want.Key(), Value: []byte(text)}, &Member{}); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// encoded is a record as a member may have written it: any value below any key.
func encoded(t *testing.T, k Key, v any, at StoreRevision) Record {
	t.Helper()
	b, err := Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return Record{Key: k, Value: b, Created: at, Modified: at}
}

func TestAWorldBelievesTheKeyAndNotTheValue(t *testing.T) {
	web := DefaultService("web")
	at := func(slot int) Host {
		h := Host{Name: HostName(fmt.Sprintf("h%d", slot)), Slot: slot, Address: netip.MustParseAddr(fmt.Sprintf("10.126.0.%d", slot))}
		h.Instances4, h.Instances6 = InstanceRange(slot)
		return h
	}
	mine := Instance{ID: "web-1", Service: web, Host: "h1", Phase: PhaseInRotation}
	w := NewWorld()
	good := []Record{encoded(t, mine.Key(), mine, 1), encoded(t, HostKey("h1"), at(1), 1), encoded(t, HostKey("h2"), at(2), 1)}
	if err := w.Apply(good, 1); err != nil {
		t.Fatal(err)
	}
	dead := mine
	dead.Phase = PhaseDead
	namesake := dead
	namesake.Host = "h2"
	far := at(2)
	far.Instances4 = netip.MustParsePrefix("8.8.0.0/16")
	elsewhere := at(1)
	elsewhere.Address = at(2).Address
	other := ServiceKey{Tenant: "bank", Name: "vault"}
	for what, r := range map[string]Record{
		"another host's instance":        encoded(t, "/pando/instance/default/web/h2/web-1", dead, 2),
		"an instance with a name in use": encoded(t, namesake.Key(), namesake, 2),
		"another host's record":          encoded(t, HostKey("h2"), elsewhere, 2),
		"a host with foreign prefixes":   encoded(t, HostKey("h2"), far, 2),
		"a host in a slot that none has": encoded(t, HostKey("h2"), Host{Name: "h2", Slot: HostSlots}, 2),
		"another service's head":         encoded(t, HeadKey(web), StateHead{Service: other}, 2),
		"another service's intent":       encoded(t, "/pando/intent/default/web/i1", Intent{ID: "i1", Service: other}, 2),
		"an intent with another name":    encoded(t, "/pando/intent/default/web/i1", Intent{ID: "i2", Service: web}, 2),
		"another service's decision":     encoded(t, "/pando/decision/default/web/d1", Decision{ID: "d1", Service: other}, 2),
		"another member's record":        encoded(t, MemberKey("h2"), Member{Name: "h1"}, 2),
		"another service's revision":     encoded(t, RevisionKey(web, 1), Revision{Service: other, Number: 1}, 2),
		"another service's record":       encoded(t, web.Key(), Service{ServiceKey: other}, 2),
	} {
		if err := w.Apply([]Record{r}, 2); err == nil {
			t.Errorf("%s is believed", what)
		}
	}
	if got := w.Instances["web-1"].V; got.Host != "h1" || got.Phase != PhaseInRotation {
		t.Errorf("the instance is now %+v", got)
	}
	if w.Hosts["h1"].V != at(1) || w.Hosts["h2"].V != at(2) {
		t.Errorf("the hosts are now %+v", w.Hosts)
	}
	if n := len(w.Heads) + len(w.Intents) + len(w.Decisions) + len(w.Members) + len(w.Revisions) + len(w.Services); n != 0 {
		t.Errorf("%d forged records are there", n)
	}
}

func TestAMemberVouchesForItsOwnAddresses(t *testing.T) {
	m := Member{Name: "h2", Slot: 2, Address: netip.MustParseAddr("10.126.0.2")}
	good := Host{Name: "h2", Slot: 2, Address: m.Address}
	good.Instances4, good.Instances6 = InstanceRange(2)
	if err := m.Vouches(good); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Host){
		"name": func(h *Host) { h.Name = "h1" }, "slot": func(h *Host) { h.Slot = 1; h.Instances4, h.Instances6 = InstanceRange(1) },
		"address":  func(h *Host) { h.Address = netip.MustParseAddr("10.126.0.1") },
		"prefix":   func(h *Host) { h.Instances4 = netip.MustParsePrefix("8.8.0.0/16") },
		"prefix 6": func(h *Host) { _, h.Instances6 = InstanceRange(1) },
	} {
		h := good
		change(&h)
		if m.Vouches(h) == nil {
			t.Errorf("it vouches for another %s", what)
		}
	}
	if m.PublicKey = PublicKeyHash([]byte("a")); m.Admits([]byte("a")) != nil || m.Admits([]byte("b")) == nil {
		t.Error("it does not admit its own key, or admits another")
	}
}
