package trust

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

func TestTheTextOfATenantsToken(t *testing.T) {
	a, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	k := access.TokenKey{Tenant: "acme", Name: "ci-1"}
	text, secret, err := a.TenantToken(k)
	if err != nil || !IsTenantToken(text) {
		t.Fatalf("%q: %v", text, err)
	}
	if got, s, err := ReadTenantToken(" " + text + "\n"); err != nil || got != k ||
		string(s) != string(secret) {
		t.Errorf("read %v, %v", got, err)
	}
	if other, _, _ := a.TenantToken(k); other == text {
		t.Error("two tokens are equal")
	}
	last := text[len(text)-1]
	for _, bad := range []string{"", "pandot1", "pandot1...", text[:len(text)-1], text + "a",
		strings.ToUpper(text), strings.Replace(text, "acme", "ac/me", 1),
		strings.Replace(text, ".ci-1.", "..", 1), text + ".x", text[:len(text)-1] + string(last^1)} {
		got, _, err := ReadTenantToken(bad)
		if bad != text[:len(text)-1]+string(last^1) && !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("%q is read as %v", bad, got)
		}
		if err != nil && len(bad) > 20 && strings.Contains(err.Error(), bad[20:]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

// A caller sends its token to the server of its own cluster, and to no other.
func TestACallerSendsItsTokenToItsOwnCluster(t *testing.T) {
	own, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := own.TenantToken(access.TokenKey{Tenant: "acme", Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := ByTenantToken(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]struct {
		*Authority
		of   pando.HostName // of the certificate; "": the server
		want bool
	}{"its server": {own, "", true}, "another cluster": {other, "", false},
		"a host of its cluster": {own, "h1", false}} {
		i, err := s.Identity(s.of, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		go func() { _ = tls.Server(far, i.Anybody()).HandshakeContext(t.Context()); far.Close() }()
		err = tls.Client(near, c).HandshakeContext(t.Context())
		near.Close()
		if (err == nil) != s.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ByTenantToken("secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a text that is no token: %v", err)
	}
}
