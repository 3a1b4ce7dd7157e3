package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
)

// wrong is a refused request with the expected status, code and detail.
type wrong struct {
	method, path, body string
	headers            []string
	status             int
	code, detail       string
}

func (w wrong) check(t testing.TB, base string) {
	t.Helper()
	a := ask(t, base, w.method, w.path, w.body, w.headers...)
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("%s %s: content type %q, body %s", w.method, w.path, got, a.body)
		return
	}
	p := read[api.Problem](a)
	if a.status != w.status || p.Status != w.status || p.Code != w.code ||
		!strings.Contains(p.Detail, w.detail) {
		t.Errorf("%s %s %.80s:\n got %d %s: %s\nwant %d %s: %s",
			w.method, w.path, w.body, a.status, p.Code, p.Detail, w.status, w.code, w.detail)
	}
}

func TestOperatorsRefusals(t *testing.T) {
	h := open(t)
	h.serving()
	spec := func(more string) string { return `{"name": "w", "command": ["x"]` + more + `}` }
	large := `{"name": "` + strings.Repeat("a", 1<<20) + `"}`
	for _, w := range []wrong{
		{"GET", "/v1/services/none", "", nil, 404, "not_found", "service none"},
		{"GET", "/v1/services/none/why", "", nil, 404, "not_found", "service none"},
		{"GET", "/v1/services/none/counters", "", nil, 404, "not_found", "service none"},
		{"GET", "/v1/services/none/logs", "", nil, 404, "not_found", "service none"},
		{"GET", "/v1/services/web/logs?instance=none-1&lines=x", "", nil, 400, "invalid", "query.lines"},
		{"GET", "/v1/services/none/state", "", nil, 404, "not_found", "nothing has been pushed"},
		{"GET", "/v1/services/web?tenant=other", "", nil, 404, "not_found", "other/web"},
		{"DELETE", "/v1/services/none", "", nil, 404, "not_found", "service none"},
		{"POST", "/v1/services/none/pin", `{"instances": 1}`, nil, 404, "not_found", "service none"},
		{"DELETE", "/v1/services/none/pin", "", nil, 404, "not_found", "service none"},
		{"POST", "/v1/services/web/pin", `{}`, nil, 400, "invalid", "instances"},
		{"POST", "/v1/services/web/pin", `{"instances": -1}`, nil, 400, "invalid", "body.instances"},
		{"POST", "/v1/services/web/pin", `{"instances": 9999}`, nil, 400, "invalid", "4096"},
		{"POST", "/v1/services/web/pin", `{"instances": "two"}`, nil, 400, "invalid",
			"body.instances: expected integer"},
		{"POST", "/v1/services/web/pin", `{"instance": 2}`, nil, 400, "invalid",
			`did you mean "instances"?`},
		{"GET", "/v1/services/web/why?mix=3", "", nil, 400, "invalid", `did you mean "max"?`},
		{"GET", "/v1/services/web/why?max=-3", "", nil, 400, "invalid", "query.max"},
		{"POST", "/v1/services", "", nil, 400, "invalid", "body"},
		{"POST", "/v1/services", "{", nil, 400, "invalid", "body"},
		{"POST", "/v1/services", `{"name": "w"}`, nil, 400, "invalid", "command"},
		{"POST", "/v1/services", `{"name": "W!", "command": ["x"]}`, nil, 400, "invalid",
			`service name "W!"`},
		{"POST", "/v1/services", `{"name": "w", "command": []}`, nil, 400, "invalid",
			"command: is empty"},
		{"POST", "/v1/services", spec(`, "scael": {}`), nil, 400, "invalid",
			`body.scael: unexpected property: did you mean "scale"?`},
		{"POST", "/v1/services", spec(`, "scale": {"mac": 3}`), nil, 400, "invalid",
			`did you mean "max"?`},
		{"POST", "/v1/services", spec(`, "ports": [{"publish": 80}]`), nil, 400, "invalid",
			`did you mean "published"?`},
		{"POST", "/v1/services",
			spec(`, "ports": [{"published": 70000, "target": 80, "protocol": "tcp"}]`), nil, 400, "invalid",
			"70000"},
		{"POST", "/v1/services", large, nil, 413, "too_large", "at most 1048576 bytes"},
		{"POST", "/v1/services/web/pin", `{"instances": 1}`, []string{"If-Match", "soon"}, 400, "invalid",
			"If-Match"},
		{"POST", "/v1/services/web/pin", `{"instances": 1}`, []string{"If-Match", `"1"`}, 409, "conflict",
			"look again"},
		{"DELETE", "/v1/services/web", "", []string{"If-Match", `"1"`}, 409, "conflict", "look again"},
		{"POST", "/v1/services", spec(""), []string{"If-Match", `"7"`}, 409, "conflict", "is not there"},
		{"GET", "/v1/watch", "", []string{"Last-Event-ID", "x"}, 400, "invalid", "Last-Event-ID"},
		{"PUT", "/v1/services", web, nil, 405, "method", "want GET, POST"},
		{"POST", "/v1/hosts", "", nil, 405, "method", "want GET"},
		{"GET", "/v2/services", "", nil, 404, "not_found", "the path /v2/services"},
		{"GET", "/v1/services/../hosts", "", nil, 400, "invalid", `a part ".."`},
		{"GET", "/v1//services", "", nil, 400, "invalid", `a part ""`},
	} {
		w.check(t, h.http.URL)
	}
	if got := len(read[[]pando.ServiceStatus](h.ask("GET", "/v1/services", ""))); got != 1 {
		t.Errorf("%d services after the refusals, want 1", got)
	}
}

func TestEveryRouteAnswers(t *testing.T) {
	h := open(t)
	st := h.serving()
	id := string(st.Instances[0].ID)
	a := h.ask("GET", "/v1/services/web", "")
	if a.header.Get("ETag") != fmt.Sprintf(`"%d"`, st.Version) {
		t.Errorf("ETag %s of version %d", a.header.Get("ETag"), st.Version)
	}
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/v1/services", "", `"name":"web"`},
		{"POST", "/v1/services", web, `"latest":1`},
		{"GET", "/v1/services/web/why?max=1", "", `"at":`},
		{"GET", "/v1/services/web/revisions", "", `"number":1,"spec":{"name":"web"`},
		{"GET", "/v1/services/web/logs?lines=5", "", "a line of " + id},
		{"GET", "/v1/services/web/logs?instance=" + id, "", "a line of " + id},
		{"GET", "/v1/services/web/counters", "", `"instance":"` + id},
		{"GET", "/v1/hosts", "", `"name":"h1"`},
		{"GET", "/healthz", "", `"status":"ok"`},
		{"GET", "/readyz", "", `"status":"ok"`},
		{"GET", "/openapi.json", "", `"openapi": "3.1.0"`},
		{"GET", "/metrics", "", `pando_instances{phase="in rotation",service="web",tenant="default"}`},
		{"GET", "/metrics", "",
			`pando_flows_total{service="web",tenant="default"} 0`},
		{"GET", "/metrics", "", `pando_host_here{host="h1"} 1`},
		{"GET", "/metrics", "", `pando_decisions_total{kind="deploy",service="web",tenant="default"} 1`},
		{"POST", "/v1/services/web/pin", `{"instances": 2, "for_seconds": 60}`, `"pin":{"instances":2`},
		{"DELETE", "/v1/services/web/pin", "", `"latest":1`},
	} {
		a := h.ask(c.method, c.path, c.body, "Content-Type", "application/x-www-form-urlencoded")
		if a.status != http.StatusOK || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %s: %d %s\nwant %s", c.method, c.path, a.status, a.body, c.want)
		}
	}
	if a := h.ask("DELETE", "/v1/services/web", ""); a.status != http.StatusNoContent {
		t.Errorf("remove: %d %s", a.status, a.body)
	}
	h.await("web to go",
		func() bool { return h.ask("GET", "/v1/services/web", "").status == http.StatusNotFound })
}

func TestARequestIsDoneOnce(t *testing.T) {
	h := open(t)
	h.serving()
	other := strings.Replace(web, "./web", "./other", 1)
	first := read[pando.ServiceStatus](h.ask("POST", "/v1/services", other, "Idempotency-Key", "k1"))
	if first.Latest != 2 {
		t.Fatalf("revision %d, want 2", first.Latest)
	}
	if third := read[pando.ServiceStatus](h.ask("POST", "/v1/services", web)); third.Latest != 3 {
		t.Fatalf("revision %d, want 3", third.Latest)
	}
	// The answer of k1 was lost, and its sender asks again: the newer spec must stay.
	again := read[pando.ServiceStatus](h.ask("POST", "/v1/services", other, "Idempotency-Key", "k1"))
	if again.Latest != 3 {
		t.Errorf("a request that was sent again made revision %d", again.Latest)
	}
	pin := func(n int, key string) int {
		st := read[pando.ServiceStatus](h.ask("POST", "/v1/services/web/pin",
			fmt.Sprintf(`{"instances": %d}`, n), "Idempotency-Key", key))
		return st.Pin.Instances
	}
	if a, b, c := pin(2, "k2"), pin(3, "k3"), pin(2, "k2"); a != 2 || b != 3 || c != 3 {
		t.Errorf("pinned %d, %d and again %d: want 2, 3, 3", a, b, c)
	}
	// Lifting an absent pin changes nothing, and a later repetition still changes nothing.
	h.ask("DELETE", "/v1/services/web/pin", "", "Idempotency-Key", "k4")
	h.ask("DELETE", "/v1/services/web/pin", "", "Idempotency-Key", "k5")
	pin(4, "k6")
	st := read[pando.ServiceStatus](h.ask("DELETE", "/v1/services/web/pin", "", "Idempotency-Key",
		"k5"))
	if st.Pin == nil {
		t.Error("a request that was sent again lifted a newer pin")
	}
}

func TestRequestsThatChangeNothingPushNothingOut(t *testing.T) {
	h := open(t)
	h.serving()
	for n := range 40 {
		h.ask("POST", "/v1/services", web, "Idempotency-Key", fmt.Sprintf("k%d", n))
	}
	kinds := map[pando.DecisionKind]int{}
	for _, b := range read[[]pando.Because](h.ask("GET", "/v1/services/web/why", "")) {
		if b.Decision != nil {
			kinds[b.Decision.Kind]++
		}
	}
	if kinds[pando.DecidedNothing] != 20 || kinds[pando.DecidedDeploy] != 1 {
		t.Errorf("remembered: %v", kinds)
	}
}

func TestAChangeIsForTheVersionThatWasSeen(t *testing.T) {
	h := open(t)
	h.serving()
	etag := h.ask("GET", "/v1/services/web", "").header.Get("ETag")
	a := h.ask("POST", "/v1/services/web/pin", `{"instances": 2}`, "If-Match", etag)
	if a.status != http.StatusOK || a.header.Get("ETag") == etag {
		t.Fatalf("pin: %d, ETag %s then %s: %s", a.status, etag, a.header.Get("ETag"), a.body)
	}
	wrong{"POST", "/v1/services/web/pin", `{"instances": 3}`, []string{"If-Match", etag}, 409,
		"conflict", "look again"}.check(t, h.http.URL)
}

func TestAFullOrLostStoreIsSaid(t *testing.T) {
	h := open(t)
	h.serving()
	h.registry.Fail(pando.ErrStoreFull)
	wrong{"POST", "/v1/services/web/pin", `{"instances": 3}`, nil, 507, "store_full",
		"out of space"}.check(t, h.http.URL)
	h.registry.Fail(pando.ErrUnavailable)
	wrong{"POST", "/v1/services/web/pin", `{"instances": 3}`, nil, 503, "unavailable",
		"out of reach"}.check(t, h.http.URL)
	wrong{"GET", "/readyz", "", nil, 503, "unavailable", "out of reach"}.check(t, h.http.URL)
	if a := h.ask("GET", "/readyz", ""); a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	if a := h.ask("GET", "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("healthz: %d", a.status)
	}
	h.registry.Fail(nil)
}

// listen reads events of a stream until enough returns true, and returns the last id.
func (h *house) listen(
	query, last string, enough func(api.Event) bool,
) (events []api.Event, id string) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, h.http.URL+"/v1/watch"+query, nil)
	if err != nil {
		h.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	begun, done := false, false
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), ": ")
		switch {
		case name == "id":
			id = value
		case name == "data":
			var e api.Event
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				h.Fatal(err)
			}
			if bookmark := e.Kind == pando.KindBookmark; bookmark != !begun {
				h.Errorf("a watch begins with its one bookmark: %+v", e)
			} else if bookmark {
				begun = true
				continue
			}
			events = append(events, e)
			done = done || enough(e)
		case name == "" && done && id != "":
			return events, id
		}
	}
	h.Fatalf("the stream ended after %+v", events)
	return nil, ""
}

func TestAWatchGoesOnWhereItWasCut(t *testing.T) {
	h := open(t)
	st := h.serving()
	seen := fmt.Sprintf("?after=%d", st.Seen)
	h.ask("POST", "/v1/services/web/pin", `{"instances": 2}`)
	pinned := func(n int) func(api.Event) bool {
		return func(e api.Event) bool {
			var s pando.Service
			return e.Kind == pando.KindService && json.Unmarshal(e.Value, &s) == nil && s.Pin != nil &&
				s.Pin.Instances == n
		}
	}
	first, id := h.listen(seen, "", pinned(2))
	h.ask("POST", "/v1/services/web/pin", `{"instances": 3}`)
	more, _ := h.listen("", id, pinned(3))
	if more[0].Revision <= first[len(first)-1].Revision {
		t.Errorf("it began at %d again, after %d", more[0].Revision, first[len(first)-1].Revision)
	}
	// The same again in one piece: the cut lost nothing.
	all, _ := h.listen(seen, "", pinned(3))
	if len(all) != len(first)+len(more) {
		t.Errorf("%d events in one piece, %d + %d in two", len(all), len(first), len(more))
	}
	if one, _ := h.listen(seen+"&service=web", "", pinned(3)); len(one) == 0 || len(one) > len(all) {
		t.Errorf("%d events of web, %d of all", len(one), len(all))
	}
}

func TestOnlyWhatMonitoringNeedsIsReadable(t *testing.T) {
	h := open(t)
	h.serving()
	s := httptest.NewServer(api.Readable(h.http.Config.Handler))
	t.Cleanup(s.Close)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json"} {
		if a := ask(t, s.URL, "GET", path, ""); a.status != http.StatusOK {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	for _, r := range []string{"GET /v1/services", "GET /v1/services/web", "POST /v1/services",
		"DELETE /v1/services/web", "GET /v1/watch", "GET /v1/services/web/logs"} {
		method, path, _ := strings.Cut(r, " ")
		wrong{method, path, "", nil, 404, "not_found", "the path"}.check(t, s.URL)
	}
	wrong{"GET", "/state/../v1/services", "", nil, 400, "invalid", `a part ".."`}.check(t, s.URL)
}

// A page in a browser on the same machine can point its own host name at 127.0.0.1 and read the
// answers.
func TestPagesReadNothing(t *testing.T) {
	h := open(t)
	h.serving()
	front := api.Readable(h.http.Config.Handler, "host1")
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"127.0.0.1:7400", "", 200}, {"localhost:7400", "", 200}, {"LOCALHOST.", "", 200},
		{"[::1]:7400", "", 200}, {"::1", "", 200},
		{"10.126.0.1:7400", "", 200}, {"Host1:7400", "", 200}, {"", "", 200},
		{"evil.example", "", 403}, {"evil.example:7400", "", 403},
		{"127.0.0.1.evil.example:7400", "", 403}, {"localhost.evil.example", "", 403},
		{"127.0.0.1:7400", "http://evil.example", 403}, {"localhost:7400", "null", 403},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		if front.ServeHTTP(w, r); w.Code != c.status {
			t.Errorf("Host %q, Origin %q: %d, want %d: %.200s", c.host, c.origin, w.Code, c.status, w.Body)
		}
	}
}
