package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"testing"

	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
)

// A captured host runs no command on another host and reads no log there, though it is a member.
func TestOnlyTheServerRunsCommandsOnAnotherHost(t *testing.T) {
	h := fromServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	for _, c := range []struct {
		path, name string
		want       int
	}{
		{peer.ExecPath, trust.ServerName, http.StatusTeapot},
		{peer.ExecPath, "host2", http.StatusForbidden},
		{peer.ExecPath, "", http.StatusForbidden},
		{peer.LogsPath, trust.ServerName, http.StatusTeapot},
		{peer.LogsPath, "host2", http.StatusForbidden},
		{"/peer/counters", "host2", http.StatusTeapot},
	} {
		r := httptest.NewRequest(http.MethodPost, c.path, http.NoBody)
		if c.name != "" {
			own := &x509.Certificate{Subject: pkix.Name{CommonName: c.name}}
			r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{own}},
				PeerCertificates: []*x509.Certificate{own}}
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s by %q: status %d, want %d", c.path, c.name, w.Code, c.want)
		}
	}
}
