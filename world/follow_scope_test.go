package world

import (
	"testing"

	"pando.run/pando"
)

// An own deletion holds until the watch brings it, although other prefixes are ahead of the watch.
func TestAnOwnDeletionIsNotUndoneByAnOlderMessage(t *testing.T) {
	w := New()
	i := pando.Instance{ID: "a-1", Service: pando.DefaultService("a"), Host: "h1",
		Phase: pando.PhaseReady}
	value, err := Encode(i)
	if err != nil {
		t.Fatal(err)
	}
	old := pando.Record{Key: i.Key(), Value: value, Created: 5, Modified: 7}
	w.Committed(pando.Txn{Put: []pando.Stored{i}}, 5)
	w.Committed(pando.Txn{Delete: []pando.Key{i.Key()}}, 8)
	_ = w.Apply(nil, 20) // another prefix
	if _ = w.Apply([]pando.Record{old}, 7); len(w.Instances) != 0 {
		t.Error("an older message brings a deleted instance back")
	}
	_ = w.Apply([]pando.Record{{Key: i.Key(), Modified: 8}}, 8)
	old.Created, old.Modified = 30, 30
	if _ = w.Apply([]pando.Record{old}, 30); len(w.Instances) != 1 {
		t.Error("an instance that was made again is not there")
	}
}
