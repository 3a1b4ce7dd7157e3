package etcd

import (
	"context"
	"fmt"
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

// A snapshot is read in pages, and shows all records at one moment while others write.
func TestASnapshotOfManyPagesIsOfOneMoment(t *testing.T) {
	_, endpoint := start(t, tempDir(t))
	writer, reader := dial(t, endpoint), dial(t, endpoint)
	reader.paged = 7
	const pairs = 25
	write := func(n int) error {
		var txn pando.Txn
		for k := range 2 * pairs {
			s := service(fmt.Sprintf("s%03d", k))
			s.Reason = fmt.Sprint(n)
			txn.Put = append(txn.Put, s)
		}
		_, err := writer.Commit(t.Context(), txn)
		return err
	}
	if err := write(0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 1; ctx.Err() == nil; n++ {
			if err := write(n); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 20 {
		s, err := reader.Snapshot(t.Context(), pando.KindService.Under())
		if err != nil {
			t.Fatal(err)
		}
		w := world.New()
		if err := w.Apply(s.Records, s.Revision); err != nil {
			t.Fatal(err)
		}
		first := w.Services[service("s000").ServiceKey]
		for _, v := range w.Services {
			if v.V.Reason != first.V.Reason || v.Modified > s.Revision {
				t.Fatalf("%s is of write %s and %s of write %s", v.V.ServiceKey, v.V.Reason,
					first.V.ServiceKey, first.V.Reason)
			}
		}
		if len(s.Records) != 2*pairs || len(w.Services) != 2*pairs || s.Store == 0 {
			t.Fatalf("%d records of store %d, want %d", len(s.Records), s.Store, 2*pairs)
		}
	}
	cancel()
	<-ended
	if s, err := reader.Snapshot(t.Context(), "/nothing/"); err != nil || len(s.Records) != 0 ||
		s.Revision == 0 {
		t.Errorf("an empty prefix: %+v, %v", s, err)
	}
}
