package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
)

// again serves the contract anew, as a server that was restarted, or another server of the cluster.
func (h *house) again() string {
	s := httptest.NewServer(api.OperatorsHandler(h.control, nil))
	h.Cleanup(s.Close)
	return s.URL
}

// A key that has named one request is refused for every other one: another body, path, method, query
// or operator. The first request itself may come again. A restart of the server changes nothing for
// the requests about one service.
func TestAKeyOfAnotherRequestIsRefused(t *testing.T) {
	h := open(t)
	h.serving()
	const pin, runs = "/v1/services/web/pin", "/v1/services/web/runs"
	other := strings.Replace(web, `"max": 4`, `"max": 5`, 1)
	third := strings.Replace(web, `"max": 4`, `"max": 6`, 1)
	for _, c := range []struct {
		what                  string
		method, path, body    string
		method2, path2, body2 string
		durable               bool // also after a restart
	}{
		{"another number", "POST", pin, `{"instances": 3}`, "POST", pin, `{"instances": 4}`, true},
		{"another method", "POST", pin, `{"instances": 2}`, "DELETE", pin, "", true},
		{"another run", "POST", runs, `{"command": ["true"]}`, "POST", runs, `{"command": ["false"]}`,
			true},
		{"a run after a pin", "POST", pin, `{"instances": 1}`, "POST", runs, `{"command": ["true"]}`,
			true},
		{"another spec", "POST", "/v1/services", other, "POST", "/v1/services", third, true},
		{"another tenant", "POST", pin, `{"instances": 3}`, "POST", pin + "?tenant=acme",
			`{"instances": 3}`, false},
		{"another service", "POST", pin, `{"instances": 3}`, "DELETE", "/v1/services/other", "", false},
		{"another account", "PATCH", "/v1/tenants/acme", `{}`, "DELETE", "/v1/tenants/acme", "", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			key := []string{"Idempotency-Key", "key of " + c.what}
			first := ask(t, h.http.URL, c.method, c.path, c.body, key...)
			if first.status >= 300 {
				t.Fatalf("%d %s", first.status, first.body)
			}
			bases := []string{h.http.URL}
			if c.durable {
				bases = append(bases, h.again())
			}
			for _, base := range bases {
				wrong{c.method2, c.path2, c.body2, key, http.StatusUnprocessableEntity, "key_reused",
					"new one"}.check(t, base)
				wrong{c.method, c.path, c.body, append(key, "Pando-Operator", "eve"),
					http.StatusUnprocessableEntity, "key_reused", "new one"}.check(t, base)
				if got := ask(t, base, c.method, c.path, c.body, key...); got.status != first.status {
					t.Errorf("the same request again: %d %s", got.status, got.body)
				}
			}
		})
	}
	if st := read[pando.ServiceStatus](h.ask("GET", "/v1/services/web", "")); st.Latest != 2 {
		t.Errorf("the newest revision is %d, want 2", st.Latest)
	}
}

// The key of a refused request is free for the corrected one.
func TestARefusedRequestFreesItsKey(t *testing.T) {
	h := open(t)
	h.serving()
	const pin = "/v1/services/web/pin"
	wrong{"POST", pin, `{"instances": 9999}`, []string{"Idempotency-Key", "k"}, 400, "invalid",
		"4096"}.check(t, h.http.URL)
	if got := h.ask("POST", pin, `{"instances": 3}`, "Idempotency-Key", "k"); got.status != 200 {
		t.Errorf("the corrected request: %d %s", got.status, got.body)
	}
}

// A run that is asked for again with its key is that run, and not the newest one.
func TestARunThatIsAskedForAgainIsTheSame(t *testing.T) {
	h := open(t)
	h.serving()
	start := func(key string) pando.Run {
		return read[pando.Run](h.ask("POST", "/v1/services/web/runs", `{"command": ["`+key+`"]}`,
			"Idempotency-Key", key))
	}
	first, second := start("one"), start("two")
	if again := start("one"); first.Number == 0 || again.Number != first.Number ||
		second.Number == first.Number || again.Command[0] != "one" {
		t.Errorf("runs %d and %d; the first again is %+v", first.Number, second.Number, again)
	}
	const end = "/v1/services/web/runs/0"
	ended := read[pando.Run](h.ask("DELETE", end, "", "Idempotency-Key", "end"))
	if again := read[pando.Run](h.ask("DELETE", end, "", "Idempotency-Key", "end")); again.Number !=
		ended.Number || ended.Number == 0 || again.State == "" {
		t.Errorf("run %d has ended; the answer again is %+v", ended.Number, again)
	}
}
