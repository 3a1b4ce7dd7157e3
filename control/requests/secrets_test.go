package requests

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/driver/trust"
)

// keeping is a control with a vault, and with the service web that names the secret key.
func keeping(t *testing.T) *Requests {
	t.Helper()
	c := visitable(t, &answering{})
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.vault = a.Vault()
	spec := pando.Spec{Name: "web", StoredSecrets: []pando.StoredSecret{{Name: "key"}}}
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Revision{Service: web, Number: 1, Spec: spec},
		pando.Instance{ID: "web-9", Service: web, Host: "h1", Revision: 1, Phase: pando.PhasePlaced},
	}}, 2)
	return c
}

var ownKey = pando.SecretKey{Tenant: "default", Name: "key"}

// The host of an instance gets the contents of its secrets. Another host does not, and neither do
// records and decisions.
func TestSecretsGoToTheHostOfTheInstanceAlone(t *testing.T) {
	c := keeping(t)
	if _, err := c.GiveSecrets(t.Context(), "h1", "web-9"); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("before it is set: %v", err)
	}
	st, err := c.SetSecret(t.Context(), ownKey, []byte("hush"), pando.Asker{Name: "ann"})
	if err != nil || st.By != "ann" || len(st.Services) != 1 || st.Services[0] != web {
		t.Fatalf("set: %+v, %v", st, err)
	}
	all, err := c.GiveSecrets(t.Context(), "h1", "web-9")
	if err != nil || len(all) != 1 || string(all["key"]) != "hush" {
		t.Errorf("its host gets %q, %v", all, err)
	}
	if _, err := c.GiveSecrets(t.Context(), "h2", "web-9"); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another host: %v", err)
	}
	if _, err := c.GiveSecrets(t.Context(), "h1", "web-x"); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("an instance without a record: %v", err)
	}
	if got := c.desk.mirror.World.Secrets[ownKey].V; bytes.Contains(got.Sealed, []byte("hush")) {
		t.Error("the record has the content")
	}
	why, err := c.Why(t.Context(), web, 0)
	if err != nil || len(why) != 1 || why[0].Decision.Reason != "the secret key has a new content" {
		t.Errorf("why: %+v, %v", why, err)
	}
}

// The endpoints of a service show each change of its secrets.
func TestEndpointsShowTheNewestSecret(t *testing.T) {
	c := keeping(t)
	spec, _ := c.desk.mirror.World.SpecOf(web, 1)
	if at := decide.NewestSecret(c.desk.mirror.World, spec); at != 0 {
		t.Errorf("before it is set: %d", at)
	}
	last := pando.StoreRevision(0)
	for _, text := range []string{"one", "two", "two"} {
		if _, err := c.SetSecret(t.Context(), ownKey, []byte(text), pando.Asker{}); err != nil {
			t.Fatal(err)
		}
		at := decide.NewestSecret(c.desk.mirror.World, spec)
		if at <= last {
			t.Errorf("after %q: %d, before %d", text, at, last)
		}
		last = at
	}
}

func TestASecretThatCannotBeSetOrRemoved(t *testing.T) {
	c := keeping(t)
	spec, _ := c.desk.mirror.World.SpecOf(web, 1)
	if err := unset(c.desk.mirror.World, spec); !errors.Is(err, pando.ErrNotFound) ||
		!strings.Contains(err.Error(), "pando secret set key") {
		t.Errorf("a deploy before it is set: %v", err)
	}
	for _, x := range []struct {
		k    pando.SecretKey
		text string
		want error
	}{
		{pando.SecretKey{Tenant: "default", Name: "../key"}, "x", pando.ErrInvalid},
		{pando.SecretKey{Tenant: "No", Name: "key"}, "x", pando.ErrInvalid},
		{ownKey, "", pando.ErrTooLarge},
		{ownKey, strings.Repeat("x", pando.SecretBytesMax+1), pando.ErrTooLarge},
	} {
		_, err := c.SetSecret(t.Context(), x.k, []byte(x.text), pando.Asker{})
		if !errors.Is(err, x.want) {
			t.Errorf("%s with %d bytes: %v, want %v", x.k, len(x.text), err, x.want)
		}
	}
	if err := c.RemoveSecret(t.Context(), ownKey, pando.Asker{}); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("removed before it is set: %v", err)
	}
	if _, err := c.SetSecret(t.Context(), ownKey, []byte("x"), pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	if err := unset(c.desk.mirror.World, spec); err != nil {
		t.Errorf("a deploy after it is set: %v", err)
	}
	if err := c.RemoveSecret(t.Context(), ownKey, pando.Asker{}); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("removed while web names it: %v", err)
	}
	other := pando.SecretKey{Tenant: "shop", Name: "key"}
	if _, err := c.SetSecret(t.Context(), other, []byte("x"), pando.Asker{}); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveSecret(t.Context(), other, pando.Asker{}); err != nil {
		t.Errorf("a secret without a service: %v", err)
	}
	if all, err := c.Secrets(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

func TestTheKeyOfSnapshotsGoesToAHostOfTheTenantAlone(t *testing.T) {
	c := keeping(t)
	want, err := c.vault.SnapshotKey(web.Tenant)
	if err != nil {
		t.Fatal(err)
	}
	seal, err := c.vault.SnapshotSealKey(web, "web-9", c.desk.mirror.World.Instances["web-9"].V.Revision)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := c.GiveSnapshotKeys(t.Context(), "h1", "web-9")
	if err != nil || keys.Files != want || keys.Seal != seal {
		t.Errorf("its host gets %+v, %v", keys, err)
	}
	if _, err := c.GiveSnapshotKeys(t.Context(), "h2", "web-9"); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another host: %v", err)
	}
	if _, err := c.GiveSnapshotKeys(t.Context(), "h1", "web-x"); !errors.Is(err,
		pando.ErrUnavailable) {
		t.Errorf("an instance without a record: %v", err)
	}
	c.vault = nil
	if _, err := c.GiveSnapshotKeys(t.Context(), "h1", "web-9"); !errors.Is(err,
		pando.ErrUnsupported) {
		t.Errorf("without a vault: %v", err)
	}
}
