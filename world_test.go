package pando

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
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
