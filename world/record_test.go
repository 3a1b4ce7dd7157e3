package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// A record of every kind reads back as it was written, and under its own key only.
func TestEveryKindOfRecordReadsBack(t *testing.T) {
	web := pando.DefaultService("web")
	for _, v := range []pando.Stored{
		pando.Service{ServiceKey: web, Current: 2, Phase: pando.ServiceServing},
		pando.Revision{Service: web, Number: 3, Spec: pando.Spec{Name: "web",
			Command: []string{"./web"}}},
		pando.Instance{ID: "web-1", Service: web, Host: "h1", Phase: pando.PhaseReady},
		pando.Intent{ID: "01", Service: web, Verb: pando.VerbHalt, State: pando.IntentAsked},
		pando.Decision{ID: "02", Service: web, Kind: pando.DecidedDeploy},
		pando.StateHead{Service: web, Commit: pando.ObjectID{1}, Merges: 7},
		pando.EndpointsOf(pando.Service{ServiceKey: web, Home: "h1"}, pando.Spec{},
			[]pando.Instance{{ID: "web-1", Host: "h1", Phase: pando.PhaseReady}}),
		pando.VolumeHome{Service: web, Host: "h1"},
		pando.Secret{SecretKey: pando.SecretKey{Tenant: "shop", Name: "key"}, Sealed: []byte{1}},
		pando.Host{Name: "h1", Slot: 5},
		pando.Member{Name: "h1", Slot: 5, PublicKey: "aa"},
	} {
		value, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeAny(pando.Record{Key: v.Key(), Value: value})
		if err != nil || !reflect.DeepEqual(back, v) {
			t.Errorf("%T: %+v (%v), want %+v", v, back, err, v)
		}
		foreign := pando.Record{Key: v.Key() + "x", Value: value}
		if _, err := DecodeAny(foreign); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%T below a key of another object: %v", v, err)
		}
	}
	if v, err := DecodeAny(pando.Record{Key: pando.LeaderKey("control"),
		Value: []byte("noise")}); v != nil || err != nil {
		t.Errorf("a leader's key: %v, %v", v, err)
	}
}

func TestARecordOfANewerBuildIsRefused(t *testing.T) {
	key := pando.DefaultService("web").Key()
	value := fmt.Appendf(nil, `{"layout":%d,"value":{}}`, CurrentLayout()+1)
	var s pando.Service
	err := Decode(pando.Record{Key: key, Value: value}, &s)
	if err == nil || !strings.Contains(err.Error(), "upgrade pando") ||
		!strings.Contains(err.Error(), string(key)) {
		t.Errorf("the error does not name the record and the next step: %v", err)
	}
}

func TestAHostOutsideItsSlotIsRefused(t *testing.T) {
	v4, _ := pando.InstanceRange(4)
	value, err := Encode(pando.Host{Name: "h1", Slot: 3, Instances4: v4})
	if err != nil {
		t.Fatal(err)
	}
	_, err = DecodeAny(pando.Record{Key: pando.HostKey("h1"), Value: value})
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a host that claims the addresses of another: %v", err)
	}
}

// FuzzRecord reads any bytes below any key without a panic. A record that is read is written back
// as the same record.
func FuzzRecord(f *testing.F) {
	web := pando.Service{ServiceKey: pando.DefaultService("web")}
	value, err := Encode(web)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(web.Key()), value)
	f.Add(string(web.Key()), value[:len(value)-1])
	f.Add(string(web.Key()), []byte(`{"layout":1,"value":{"tenant":"default","name":"web"} }`))
	f.Add(string(web.Key()), []byte(`{"layout":1,"value":}`))
	f.Add(string(web.Key()), []byte(`{"layout":1,"value":{}}{}`))
	f.Add("/pando/host/h1", []byte(`{"layout":0,"value":{"name":"h1","slot":1}}`))
	f.Add("/pando/intent/a/b/c",
		[]byte(`{"layout":1,"value":{"id":"c","service":{"tenant":"a","name":"b"}}}`))
	f.Add("/pando/none/a", []byte("null"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		v, err := DecodeAny(pando.Record{Key: pando.Key(key), Value: value})
		if err != nil || v == nil {
			return
		}
		if v.Key() != pando.Key(key) {
			t.Fatalf("key %q has a record of %q", key, v.Key())
		}
		again, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeAny(pando.Record{Key: v.Key(), Value: again})
		first, _ := json.Marshal(v)
		second, _ := json.Marshal(back)
		if err != nil || string(first) != string(second) {
			t.Fatalf("%s becomes %s (%v)", first, second, err)
		}
	})
}

// commit is one commit of the store, with the transaction that made it.
type commit struct {
	txn   pando.Txn
	batch pando.Batch
}

// history draws commits that write and delete the records of a few names.
func history(t *rapid.T) (out []commit) {
	created := map[pando.Key]pando.StoreRevision{}
	for at := pando.StoreRevision(1); at <= 20; at++ {
		c := commit{batch: pando.Batch{Revision: at}}
		for _, name := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 1, 3, rapid.ID).Draw(t,
			"names") {
			v := stored(t, name)
			if created[v.Key()] > 0 && rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
				c.txn.Delete = append(c.txn.Delete, v.Key())
				c.batch.Changes = append(c.batch.Changes, pando.Record{Key: v.Key(), Modified: at})
				delete(created, v.Key())
				continue
			}
			value, err := Encode(v)
			if err != nil {
				t.Fatal(err)
			}
			if created[v.Key()] == 0 {
				created[v.Key()] = at
			}
			c.txn.Put = append(c.txn.Put, v)
			c.batch.Changes = append(c.batch.Changes,
				pando.Record{Key: v.Key(), Value: value, Created: created[v.Key()], Modified: at})
		}
		out = append(out, c)
	}
	return out
}

// stored draws a record with the key of a name.
func stored(t *rapid.T, name int) pando.Stored {
	s := pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", name%2)))
	n := rapid.IntRange(0, 9).Draw(t, "content")
	switch name {
	case 0, 1:
		return pando.Service{ServiceKey: s, Current: n}
	case 2, 3:
		id := pando.InstanceID(fmt.Sprintf("i%d", name))
		return pando.Instance{ID: id, Service: s, Host: "h1", Revision: n, Phase: pando.PhaseReady}
	case 4:
		return pando.Intent{ID: "04", Service: s, Reason: fmt.Sprint(n)}
	default:
		return pando.Host{Name: "h1", Slot: 1, Version: fmt.Sprint(n)}
	}
}

// contents returns the records of a world, so that two worlds can be compared.
func contents(w *World) map[pando.Key]string {
	out := map[pando.Key]string{}
	for k, n := range w.byKey {
		text, err := json.Marshal(n.value)
		if err != nil {
			panic(err)
		}
		out[k] = fmt.Sprintf("%d %s", n.modified, text)
	}
	return out
}

// A process applies its own commits at once, before the watch sends them and the commits of others
// between them. In the end its world is that of a process that only watches.
func TestOwnCommitsAheadOfTheWatchChangeNothingInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		commits := history(t)
		watcher, writer := New(), New()
		sent := 0
		for n, c := range commits {
			if rapid.Bool().Draw(t, "own") {
				writer.Committed(c.txn, c.batch.Revision)
			}
			for ; sent < n && rapid.Bool().Draw(t, "watch"); sent++ {
				apply(t, writer, commits[sent])
			}
		}
		for ; sent < len(commits); sent++ {
			apply(t, writer, commits[sent])
		}
		for _, c := range commits {
			apply(t, watcher, c)
		}
		if got, want := contents(writer), contents(watcher); !reflect.DeepEqual(got, want) {
			t.Fatalf("the writer has\n%v\nthe watcher has\n%v", got, want)
		}
		if !reflect.DeepEqual(writer.Instances, watcher.Instances) ||
			!reflect.DeepEqual(writer.Services, watcher.Services) {
			t.Fatalf("the indexes differ:\n%v\n%v", writer.Instances, watcher.Instances)
		}
		if len(writer.gone) > 0 {
			t.Fatalf("deleted records are kept after every message has arrived: %v", writer.gone)
		}
	})
}

func apply(t *rapid.T, w *World, c commit) {
	if err := w.Apply(c.batch.Changes, c.batch.Revision); err != nil {
		t.Fatal(err)
	}
}
