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
