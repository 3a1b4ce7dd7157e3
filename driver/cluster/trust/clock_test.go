package trust

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A host with a wrong clock gets that cause. The server is no stranger.
func TestAWrongClockIsNamed(t *testing.T) {
	for off, want := range map[time.Duration]string{
		0: "", 30 * time.Minute: "", 3 * time.Hour: "set the clock",
		-2 * CertificateLife: "set the clock",
	} {
		now := time.Now().Add(off) // of the server
		a, err := OpenAuthority(t.TempDir(), now)
		if err != nil {
			t.Fatal(err)
		}
		i, err := a.Identity("", now)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(a.Certificate())
		shown := []*x509.Certificate{i.own.Load().Leaf}
		err = verify(shown, roots, ServerName)
		if want == "" && err != nil {
			t.Errorf("%s: %v", off, err)
		}
		if want != "" && (!errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", off, err, want)
		}
	}
}
