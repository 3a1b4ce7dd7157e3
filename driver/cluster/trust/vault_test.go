package trust

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"pando.run/pando"
)

// A secret opens under its name, in its tenant and cluster alone.
func TestASecretOpensUnderItsNameAlone(t *testing.T) {
	open := func(dir string) pando.Vault {
		t.Helper()
		a, err := OpenAuthority(dir, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return a.Vault()
	}
	dir := t.TempDir()
	k := pando.SecretKey{Tenant: "default", Name: "password"}
	content := []byte("correct horse\x00battery\n")
	sealed, err := open(dir).Seal(k, content)
	if err != nil || bytes.Contains(sealed, content[:7]) {
		t.Fatalf("sealed as %q, %v", sealed, err)
	}
	if got, err := open(dir).Open(k, sealed); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the authority, opened again, reads %q, %v", got, err)
	}
	damaged := bytes.Clone(sealed)
	damaged[len(damaged)-1] ^= 1
	for what, c := range map[string]struct {
		v      pando.Vault
		k      pando.SecretKey
		sealed []byte
	}{
		"another name":    {open(dir), pando.SecretKey{Tenant: "default", Name: "passwor"}, sealed},
		"another tenant":  {open(dir), pando.SecretKey{Tenant: "shop", Name: "password"}, sealed},
		"another cluster": {open(t.TempDir()), k, sealed},
		"a damaged text":  {open(dir), k, damaged},
		"no text":         {open(dir), k, nil},
	} {
		if got, err := c.v.Open(c.k, c.sealed); !errors.Is(err, pando.ErrForbidden) || got != nil {
			t.Errorf("%s reads %q, %v", what, got, err)
		}
	}
}

// The key of snapshots depends on the tenant and the authority alone, and it opens no secret.
func TestEachTenantHasItsKeyOfSnapshots(t *testing.T) {
	dir := t.TempDir()
	keyOf := func(dir string, tenant pando.Tenant) pando.SnapshotKey {
		t.Helper()
		a, err := OpenAuthority(dir, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		key, err := a.Vault().SnapshotKey(tenant)
		if secrets, _ := (vault{a}).passphrase(tenant); err != nil || len(key) != 64 ||
			string(key) == secrets {
			t.Errorf("a key of %d digits, %v", len(key), err)
		}
		return key
	}
	key := keyOf(dir, "default")
	if keyOf(dir, "default") != key {
		t.Error("the authority, opened again, has another key")
	}
	if keyOf(dir, "shop") == key || keyOf(t.TempDir(), "default") == key {
		t.Error("another tenant or cluster has the same key")
	}
}
