package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando/access"
	"pando.run/pando/driver/cluster/trust"
)

// gated is a gatekeeper of a cluster with one token, and the text of that token.
func gated(t *testing.T) (g *gatekeeper, text string, log *bytes.Buffer) {
	t.Helper()
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	k := access.TokenKey{Tenant: "acme", Name: "ci"}
	text, secret, err := a.TenantToken(k)
	if err != nil {
		t.Fatal(err)
	}
	own := access.Token{TokenKey: k, Hash: access.TokenHash(secret), Until: time.Now().Add(time.Hour)}
	log = &bytes.Buffer{}
	return newGatekeeper(func(asked access.TokenKey, secret []byte) (access.Token, error) {
		if asked != k {
			return access.Token{}, access.Token{}.Admits(secret, time.Now())
		}
		return own, own.Admits(secret, time.Now())
	}, slog.New(slog.NewTextHandler(log, nil))), text, log
}

func knock(h http.Handler, text, from string) int {
	r := httptest.NewRequest("GET", "https://10.0.0.1:7401/v1/services", http.NoBody)
	r.Header.Set("Authorization", bearer+text)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

var welcomes = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) })

// Wrong tokens of one address are not looked at for a while. A right one is: others may have that address
// too, behind a NAT, or share its bucket.
func TestWrongTokensAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, text, log := gated(t)
		h := g.admit(welcomes)
		if got := knock(h, text, "192.0.2.1:1"); got != 200 {
			t.Fatalf("its own token: %d", got)
		}
		wrong := strings.Replace(text, ".ci.", ".cd.", 1)
		codes := map[int]int{}
		for n := range 500 {
			codes[knock(h, wrong, fmt.Sprintf("192.0.2.1:%d", n+2))]++
		}
		if codes[403] != failsBurst || codes[503] != 500-failsBurst {
			t.Errorf("500 wrong tokens: %v", codes)
		}
		if got := knock(h, text, "192.0.2.1:1"); got != 200 {
			t.Errorf("the right token from that address: %d", got)
		}
		if got := knock(h, text, "198.51.100.9:1"); got != 200 {
			t.Errorf("the right token from another address: %d", got)
		}
		if n := strings.Count(log.String(), "\n"); n != linesBurst {
			t.Errorf("%d lines about 500 refused calls", n)
		}
		if s := log.String(); !strings.Contains(s, "token=acme/cd") ||
			!strings.Contains(s, "from=192.0.2.1:2") || strings.Contains(s, wrong) {
			t.Errorf("the log is %.300s", s)
		}
		time.Sleep(time.Minute)
		if got := knock(h, wrong, "192.0.2.1:1"); got != 403 {
			t.Errorf("a minute later: %d", got)
		}
	})
}

// The lines about refused calls have a share for each tenant. Neither wrong tokens from everywhere nor
// those with the name of a tenant take it.
func TestRefusedCallsOfATenantAreLoggedInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, text, log := gated(t)
		h := g.admit(welcomes)
		lines := func(part string) int { return strings.Count(log.String(), part) }
		wrong := text[:len(text)-8] + "aaaaaaaa" // of acme, with another secret
		for n := range 4 * strangerBurst {
			knock(h, wrong, fmt.Sprintf("192.0.%d.%d:1", n/200, n%200))
		}
		if n := lines("\n"); n != strangerBurst {
			t.Errorf("%d lines about wrong tokens, want %d", n, strangerBurst)
		}
		ask := func(from string) {
			r := httptest.NewRequest("DELETE", "https://10.0.0.1:7401/v1/hosts/h1", http.NoBody)
			r.Header.Set("Authorization", bearer+text)
			r.RemoteAddr = from
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		for n := range 2 * linesBurst {
			ask(fmt.Sprintf("198.51.100.%d:1", n)) // many addresses are still one tenant
		}
		if n := lines("path=/v1/hosts/h1"); n != linesBurst {
			t.Errorf("%d lines about the tenant, want %d", n, linesBurst)
		}
	})
}

func TestCallsOfATokenAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, text, _ := gated(t)
		h := g.admit(welcomes)
		codes := map[int]int{}
		for n := range 2 * callsBurst {
			codes[knock(h, text, fmt.Sprintf("192.0.2.%d:1", n%200))]++
		}
		if codes[200] != callsBurst || codes[503] != callsBurst {
			t.Errorf("%v", codes)
		}
		time.Sleep(time.Second)
		if got := knock(h, text, "192.0.2.1:1"); got != 200 {
			t.Errorf("a second later: %d", got)
		}
	})
}

// A stream ends soon after its token.
func TestAStreamEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, text, _ := gated(t)
		ended := make(chan time.Time, 1)
		h := g.admit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			ended <- time.Now()
		}))
		begun := time.Now()
		knock(h, text, "192.0.2.1:1")
		if took := (<-ended).Sub(begun); took < time.Hour || took > time.Hour+2*validLook {
			t.Errorf("it ended after %s", took)
		}
	})
}

// The memory of a gatekeeper does not grow with its callers.
func TestAGatekeeperForgets(t *testing.T) {
	g, _, _ := gated(t)
	for n := range 3 * callersMax {
		g.callsOf(access.TokenKey{Tenant: "acme", Name: fmt.Sprint(n)})
	}
	if len(g.calls) > callersMax {
		t.Errorf("%d tokens", len(g.calls))
	}
}
