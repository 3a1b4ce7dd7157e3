package etcdtest

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// The authority of an etcd signs its own certificate and that of each client, and no other does.
func TestTheFilesBelongTogether(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:2379")
	e := New(t, time.Now(), "etcd", t.TempDir(), at)
	other := New(t, time.Now(), "etcd", t.TempDir(), at)
	client, err := tls.LoadX509KeyPair(e.Certificate, e.Key)
	if err != nil {
		t.Fatal(err)
	}
	server, key := e.Sign(t, "server", at.Addr())
	serves, err := tls.LoadX509KeyPair(server, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := serves.Leaf.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}
	for ca, want := range map[string]bool{e.CA: true, other.CA: false} {
		text, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		for _, c := range []*x509.Certificate{client.Leaf, serves.Leaf} {
			_, err := c.Verify(x509.VerifyOptions{Roots: pool,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			if (err == nil) != want {
				t.Errorf("%s is of the authority %s: %v", c.Subject.CommonName, ca, err)
			}
		}
	}
	if !slices.Contains(e.Argv, "--client-cert-auth") || len(e.Flags()) != 8 {
		t.Errorf("the command line is %q, the flags are %q", e.Argv, e.Flags())
	}
}
