package requests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
)

// audited runs a request with a deed, as package api does.
func audited(c *Requests, p *pando.Pending, do func(context.Context) error) error {
	ctx := pando.WithDeed(context.Background(), p)
	err := do(ctx)
	p.Result = pando.DeedDone
	if err != nil {
		p.Result = err.Error()
	}
	return errors.Join(err, c.Record(ctx, p))
}

// watchedRegistry is a registry that notes transactions, and fails some.
type watchedRegistry struct {
	pando.Registry
	done []pando.Txn
	fail func(pando.Txn) error
}

func (r *watchedRegistry) Commit(
	ctx context.Context, t pando.Txn,
) (pando.StoreRevision, error) {
	if r.fail != nil {
		if err := r.fail(t); err != nil {
			return 0, err
		}
	}
	at, err := r.Registry.Commit(ctx, t)
	if err == nil {
		r.done = append(r.done, t)
	}
	return at, err
}

// noted returns a control, the registry that notes its commits, and the deeds of its file.
func noted(t *testing.T) (c *Requests, r *watchedRegistry, file *[]pando.Deed) {
	c = visitable(t, &answering{})
	own := c.desk.mirror.Registry.(mirror.Auditing)
	r = &watchedRegistry{Registry: own.Registry}
	own.Registry = r
	c.desk.mirror.Registry = own
	c.desk.mirror.Name = "h1"
	file = new([]pando.Deed)
	c.audited = func(d pando.Deed) error { *file = append(*file, d); return nil }
	return c, r, file
}

func deedsOf(t *testing.T, c *Requests, q pando.DeedQuery) []pando.Deed {
	t.Helper()
	a, err := c.Deeds(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return a.Deeds
}

// A change and its deed are one transaction, so no crash separates them.
func TestADeedIsWrittenWithItsChange(t *testing.T) {
	c, r, file := noted(t)
	p := &pando.Pending{Deed: pando.Deed{Verb: "pin", By: "anna"}}
	p.About("service", web.Tenant, string(web.Name))
	if err := audited(c, p, func(ctx context.Context) error {
		_, err := c.SetTenant(ctx, "acme", pando.AccountChange{}, pando.Asker{Name: "anna"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(r.done) != 1 || len(r.done[0].Put) != 2 {
		t.Fatalf("transactions %+v, want one with the record and the deed", r.done)
	}
	got := deedsOf(t, c, pando.DeedQuery{})
	if len(got) != 1 || got[0].Source != "host h1" || got[0].Verb != "pin" || got[0].By != "anna" ||
		got[0].Result != pando.DeedDone || got[0].At.IsZero() || len(*file) != 1 {
		t.Errorf("deeds %+v, in the file %+v", got, *file)
	}
}

// A refused request, and one that changes no record, is in the audit before its answer.
func TestADeedWithoutAChangeIsWrittenAlone(t *testing.T) {
	c, _, file := noted(t)
	err := audited(c, &pando.Pending{Deed: pando.Deed{Verb: "remove-tenant"}},
		func(ctx context.Context) error { return c.RemoveTenant(ctx, "none", pando.Asker{}) })
	if !errors.Is(err, pando.ErrNotFound) {
		t.Fatal(err)
	}
	if err := audited(c, &pando.Pending{Deed: pando.Deed{Verb: "pull-image"}},
		func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	got := deedsOf(t, c, pando.DeedQuery{})
	if len(got) != 2 || got[0].Result == pando.DeedDone || got[1].Result != pando.DeedDone ||
		len(*file) != 2 {
		t.Errorf("deeds %+v, in the file %+v", got, *file)
	}
}

// A session has its words in the deed. Later records of the session belong to no deed.
func TestTheDeedOfASessionHasItsWords(t *testing.T) {
	c, r, _ := noted(t)
	p := &pando.Pending{Deed: pando.Deed{Verb: "exec"}}
	var end func() error
	if err := audited(c, p, func(ctx context.Context) error {
		conn, err := c.Exec(ctx, web, "web-1", pando.SessionSpec{Command: []string{"id", "-u"}},
			pando.Asker{})
		end = conn.Close
		return err
	}); err != nil {
		t.Fatal(err)
	}
	before := len(r.done)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	for _, t1 := range r.done[before:] {
		for _, v := range t1.Put {
			if _, is := v.(pando.Deed); is {
				t.Errorf("the end of the session wrote %+v", v)
			}
		}
	}
	if got := deedsOf(t, c, pando.DeedQuery{}); len(got) != 1 || got[0].Detail != "id -u: it runs" {
		t.Errorf("%+v", got)
	}
}

// A full store still takes deletions, which make room. The file has their deeds.
func TestAFullStoreTakesADeletionWithoutItsDeed(t *testing.T) {
	c, r, file := noted(t)
	if _, err := c.SetTenant(t.Context(), "acme", pando.AccountChange{}, pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	r.fail = func(t pando.Txn) error {
		if len(t.Put) > 0 {
			return pando.ErrStoreFull
		}
		return nil
	}
	remove := func() error {
		return audited(c, &pando.Pending{Deed: pando.Deed{Verb: "remove-tenant"}},
			func(ctx context.Context) error { return c.RemoveTenant(ctx, "acme", pando.Asker{}) })
	}
	if err := remove(); err != nil || len(*file) != 1 {
		t.Fatalf("%v, in the file %+v", err, *file)
	}
	c.audited = func(pando.Deed) error { return errors.New("no space left") }
	if err := audited(c, &pando.Pending{Deed: pando.Deed{Verb: "pull-image"}},
		func(context.Context) error { return nil }); !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("neither the store nor the file has it: %v", err)
	}
}

// The contents of secrets that a host gets are in the audit, by name.
func TestSecretsOfAHostAreInTheAudit(t *testing.T) {
	c := keeping(t)
	if _, err := c.SetSecret(t.Context(), ownKey, []byte("hush"), pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GiveSecrets(t.Context(), "h1", "web-9"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GiveSecrets(t.Context(), "h2", "web-9"); err == nil {
		t.Fatal("another host gets them")
	}
	got := deedsOf(t, c, pando.DeedQuery{})
	if len(got) != 1 || got[0].Source != "agent h1" || got[0].Verb != "read-secrets" ||
		got[0].Object != "instance web-9" || got[0].Detail != "key" || got[0].Result != "ok" {
		t.Errorf("%+v", got)
	}
}

// A change outside of a request has no deed, and neither has a decision of the leader.
func TestOnlyRequestsHaveDeeds(t *testing.T) {
	c, r, _ := noted(t)
	if _, err := c.SetTenant(t.Context(), "acme", pando.AccountChange{}, pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	ctx := pando.WithDeed(t.Context(), &pando.Pending{})
	_ = c.desk.mirror.Commit(ctx, pando.Fence{Key: "/pando/leader/control", Created: 9},
		pando.Txn{Put: []pando.Stored{pando.Account{Tenant: "beta"}}})
	for _, one := range r.done {
		for _, v := range one.Put {
			if _, is := v.(pando.Deed); is {
				t.Errorf("a deed without a request: %+v", v)
			}
		}
	}
}

// The audit keeps its bounds, and records the number of removed deeds and their newest time.
func TestTheAuditIsTrimmedAndSaysSo(t *testing.T) {
	c, _, _ := noted(t)
	const deeds, most = 100, 64
	for n := range deeds {
		if err := audited(c, &pando.Pending{Deed: pando.Deed{Verb: fmt.Sprint("v", n)}},
			func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		c.trimAudit(t.Context(), most, pando.DeedsBytesMax)
	}
	a, err := c.Deeds(t.Context(), pando.DeedQuery{})
	if err != nil || len(a.Deeds) > most || len(a.Deeds)+a.Trim.Deeds != deeds ||
		a.Trim.Until.After(a.Deeds[0].At) || a.Trim.Until.IsZero() {
		t.Errorf("%d deeds, %+v, %v", len(a.Deeds), a.Trim, err)
	}
	if a.Deeds[len(a.Deeds)-1].Verb != "v99" {
		t.Errorf("the newest is %+v", a.Deeds[len(a.Deeds)-1])
	}
	s, err := c.desk.mirror.Registry.Snapshot(t.Context(), pando.KindAudit.Under())
	if err != nil || len(s.Records) != len(a.Deeds) {
		t.Errorf("the store has %d, %v", len(s.Records), err)
	}
}

// A query waits for a deed, and ends after its time without one.
func TestAQueryWaitsForADeed(t *testing.T) {
	c, _, _ := noted(t)
	a, err := c.Deeds(t.Context(), pando.DeedQuery{Wait: time.Millisecond})
	if err != nil || len(a.Deeds) != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	got := make(chan pando.Audit)
	go func() {
		a, _ := c.Deeds(t.Context(), pando.DeedQuery{Wait: pando.DeedWaitMax})
		got <- a
	}()
	if err := audited(c, &pando.Pending{Deed: pando.Deed{Verb: "pin"}},
		func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	s, err := c.desk.mirror.Registry.Snapshot(t.Context(), pando.KindAudit.Under())
	if err != nil {
		t.Fatal(err)
	}
	c.desk.mirror.Take(pando.Batch{Changes: s.Records, Revision: s.Revision}, false) // the watch wakes the query
	if a := <-got; len(a.Deeds) != 1 || a.Deeds[0].Verb != "pin" {
		t.Errorf("%+v", a)
	}
}
