package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
)

// recorder is the operators' API. It records the requests that reach it.
type recorder struct{ seen []string }

func (r *recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.seen = append(r.seen, fmt.Sprintf("%s %s by %s", q.Method, q.URL.Path,
		q.Header.Get(operatorHeader)))
	w.WriteHeader(http.StatusOK)
}

// isHost returns an asker that is one host with rights.
func isHost(h pando.HostName, rights ...pando.Right) func(*http.Request) (pando.Member, bool) {
	m := pando.Member{Name: h}
	for _, r := range rights {
		m, _ = m.Grant(r, pando.Granting{May: true})
	}
	return func(*http.Request) (pando.Member, bool) { return m, true }
}

func do(h http.Handler, method, path string, change func(*http.Request)) int {
	r := httptest.NewRequest(method, "http://10.0.0.1"+path, http.NoBody)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// A captured host reads and scales, and starts no program on another host.
func TestAMemberMayNotDeploy(t *testing.T) {
	api := &recorder{}
	h := ForMembers(api, isHost("h2"))
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/v1/services", 200},
		{"GET", "/v1/services/web/why", 200},
		{"GET", "/v1/services/web/fits", 200},
		{"POST", "/state/web.git/git-upload-pack", 200},
		{"POST", "/v1/services/web/pin", 200},
		{"DELETE", "/v1/services/web/pin", 200},
		{"DELETE", "/v1/services/web", 200},
		{"DELETE", "/v1/hosts/h2", 200},
		{"DELETE", "/v1/hosts/h3", 403},
		{"POST", "/v1/services", 403},
		{"PUT", "/v1/services/web", 403},
		{"POST", "/v1/services/web/pin/more", 403},
		{"PUT", "/v1/hosts/h2/drain", 200},
		{"POST", "/v1/tokens", 403},
	} {
		before := len(api.seen)
		if got := do(h, c.method, c.path, nil); got != c.want ||
			(len(api.seen) > before) != (c.want == 200) {
			t.Errorf("%s %s: status %d, want %d; the API received %v", c.method, c.path, got, c.want,
				api.seen[before:])
		}
	}
}

// Each request needs its own right, the refusal names the command that gives it, and no right gives
// rights.
func TestARightOpensItsRequestsAndNoOthers(t *testing.T) {
	for _, c := range []struct {
		method, path string
		needs        pando.Right
	}{
		{"POST", "/v1/services", pando.RightDeploy},
		{"POST", "/v1/services/web/rollback", pando.RightDeploy},
		{"POST", "/v1/services/web/rollout/pause", pando.RightDeploy},
		{"DELETE", "/v1/services/web/rollout/pause", pando.RightDeploy},
		{"POST", "/v1/services/web/rollout/undo", pando.RightDeploy},
		{"POST", "/v1/images", pando.RightDeploy},
		{"POST", "/v1/rebalance", pando.RightDeploy},
		{"DELETE", "/v1/images/sha256:00", pando.RightDeploy},
		{"PUT", "/v1/secrets/key", pando.RightDeploy},
		{"DELETE", "/v1/secrets/key", pando.RightDeploy},
		{"DELETE", "/v1/services/web/volumes/data", pando.RightDeploy},
		{"POST", "/v1/services/web/exec", pando.RightExec},
		{"POST", "/v1/tokens", pando.RightAdmit},
		{"DELETE", "/v1/hosts/h3", pando.RightAdmit},
		{"PUT", "/v1/hosts/h3/drain", pando.RightAdmit},
		{"DELETE", "/v1/hosts/h3/drain", pando.RightAdmit},
		{"DELETE", "/v1/hosts/h2/drain", pando.RightAdmit}, // its own too
		{"PUT", "/v1/hosts/h2/rights/deploy", ""},
		{"DELETE", "/v1/hosts/h2/rights/deploy", ""},
	} {
		for _, right := range append(pando.Rights, "") {
			api := &recorder{}
			h := ForMembers(api, isHost("h2", right))
			want := 403
			if right == c.needs && right != "" {
				want = 200
			}
			r := httptest.NewRecorder()
			h.ServeHTTP(r, httptest.NewRequest(c.method, c.path, http.NoBody))
			if r.Code != want || (len(api.seen) > 0) != (want == 200) {
				t.Errorf("%s %s with the right %q: %d, want %d", c.method, c.path, right, r.Code, want)
			}
			hint := "pando hosts allow h2 " + string(c.needs)
			if c.needs == "" {
				hint = "server's host only"
			}
			if want == 403 && !strings.Contains(r.Body.String(), hint) {
				t.Errorf("%s %s: the refusal is %s", c.method, c.path, r.Body)
			}
		}
	}
}

func TestARequestOfAMemberIsRecordedUnderItsHost(t *testing.T) {
	for _, c := range []struct{ operator, want string }{
		{"", "h2"}, {"alice", "alice@h2"}, {"alice@h1", "alice@h1@h2"},
		{strings.Repeat("x", 200), strings.Repeat("x", operatorMax-3) + "@h2"},
	} {
		api := &recorder{}
		h := ForMembers(api, isHost("h2"))
		do(h, "GET", "/v1/services", func(r *http.Request) { r.Header.Set(operatorHeader, c.operator) })
		if want := "GET /v1/services by " + c.want; len(api.seen) != 1 || api.seen[0] != want {
			t.Errorf("%.20q: recorded %v, want %s", c.operator, api.seen, want)
		}
	}
}

func TestAStrangerIsNotAnswered(t *testing.T) {
	api := &recorder{}
	h := ForMembers(api, func(*http.Request) (m pando.Member, ok bool) { return m, false })
	if got := do(h, "GET", "/v1/services", nil); got != 403 || len(api.seen) > 0 {
		t.Errorf("status %d; the API received %v", got, api.seen)
	}
}

// A page in a browser on this machine reads nothing, under any name that it gives the machine.
func TestAPageOfABrowserReadsNothing(t *testing.T) {
	api := &recorder{}
	h := Readable(api, "host1")
	for _, c := range []struct {
		name, method, path, host, origin string
		want                             int
	}{
		{"an address", "GET", "/metrics", "10.0.0.1:7400", "", 200},
		{"an IPv6 address", "GET", "/healthz", "[fd00::1]:7400", "", 200},
		{"a bare IPv6 address", "GET", "/healthz", "[fd00::1]", "", 200},
		{"localhost", "GET", "/readyz", "localhost:7400", "", 200},
		{"its name, in capitals with a dot", "GET", "/metrics", "HOST1.:7400", "", 200},
		{"a clone", "POST", "/state/web.git/git-upload-pack", "host1", "", 200},
		{"a foreign name", "GET", "/metrics", "evil.example:7400", "", 403},
		{"a name that begins as its own", "GET", "/metrics", "host1.evil.example", "", 403},
		{"a page", "GET", "/metrics", "localhost:7400", "http://evil.example", 403},
		{"a page without a name", "GET", "/metrics", "localhost:7400", "null", 403},
		{"a spec", "GET", "/v1/services", "localhost:7400", "", 404},
		{"a change", "POST", "/v1/services", "localhost:7400", "", 404},
		{"a change of the monitoring", "POST", "/metrics", "localhost:7400", "", 405},
	} {
		before := len(api.seen)
		got := do(h, c.method, c.path, func(r *http.Request) {
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
		})
		if got != c.want || (len(api.seen) > before) != (c.want == 200) {
			t.Errorf("%s: status %d, want %d; the API received %v", c.name, got, c.want, api.seen[before:])
		}
	}
}
