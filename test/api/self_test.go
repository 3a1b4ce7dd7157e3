package api

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
)

func TestInstancesRefusals(t *testing.T) {
	h := open(t)
	st := h.serving()
	base := h.self(st.Instances[0].ID)
	large := `{"reason": "` + strings.Repeat("a", 1<<20) + `"}`
	for _, w := range []wrong{
		{"POST", "/v1/self/replicate", large, nil, 413, "too_large", "at most 1048576 bytes"},
		{"POST", "/v1/self/replicate", `{"raison": "x"}`, nil, 400, "invalid", `did you mean "reason"?`},
		{"POST", "/v1/self/replicate", `{"reason": 3}`, nil, 400, "invalid", "reason"},
		{"POST", "/v1/self/replicate", `{} {}`, nil, 400, "invalid", "has text after its end"},
		{"POST", "/v1/self/replicate", `[]`, nil, 400, "invalid", "the body"},
		{"POST", "/v1/self/halt", `{"when": 1}`, nil, 400, "invalid", "known are reason, inputs, wait"},
		{"POST", "/v1/self/halt", "", nil, 409, "refused", "min"},
		{"POST", "/v1/self/die", "", nil, 409, "refused", "halt it first"},
		{"PUT", "/v1/self/metrics", `{"queue": "long"}`, nil, 400, "invalid", "the body"},
		{"PUT", "/v1/self/leader", `{"term": -1}`, nil, 400, "invalid", "want a term from 0 on"},
		{"PUT", "/v1/self/leader", "", nil, 400, "invalid", "want a term from 0 on"},
		{"PUT", "/v1/self/leader", `{"term": 1}`, nil, 409, "refused", "kind: stateful"},
		{"GET", "/v1/self/events", "", []string{"Last-Event-ID", "-1"}, 400, "invalid", "Last-Event-ID"},
		{"POST", "/v1/self/state/commit", `{"text": 1}`, nil, 400, "invalid", "known are message"},
		{"GET", "/v1/self/state/none", "", nil, 404, "not_found", "none"},
		{"PUT", "/v1/self/state/hits", "many", nil, 400, "invalid", "hits"},
		{"PATCH", "/v1/self/state/hits", "x", nil, 400, "invalid", "hits"},
		{"PUT", "/v1/self/state/a", strings.Repeat("a", 16<<20+1), nil, 413, "too_large",
			"at most 16777216 bytes"},
		{"PUT", "/v1/self/state/../../etc", "x", nil, 400, "invalid", `a part ".."`},
		{"GET", "/v1/self/state/a/../../../ready", "", nil, 400, "invalid", `a part ".."`},
		{"PUT", "/v1/self/state/a//b", "x", nil, 400, "invalid", `a part ""`},
		{"GET", "/v1/self/replicate", "", nil, 405, "method", "want POST"},
		{"POST", "/v1/self", "", nil, 405, "method", "want GET"},
		{"GET", "/v1/services", "", nil, 404, "not_found", "the path /v1/services"},
		{"GET", "/v1/self/" + string(st.Instances[0].ID), "", nil, 404, "not_found", "the path"},
	} {
		w.check(t, base)
	}
	// The socket of an instance that is not here answers nothing.
	for _, r := range []string{"GET /v1/self", "POST /v1/self/ready", "POST /v1/self/replicate",
		"POST /v1/self/halt", "POST /v1/self/die",
		"PUT /v1/self/metrics", "PUT /v1/self/leader", "GET /v1/self/events",
		"POST /v1/self/state/commit",
		"POST /v1/self/state/pull", "POST /v1/self/state/push",
		"GET /v1/self/state/a", "GET /v1/self/state/", "PUT /v1/self/state/a", "PATCH /v1/self/state/a",
		"DELETE /v1/self/state/a"} {
		method, path, _ := strings.Cut(r, " ")
		body := ""
		if path == "/v1/self/metrics" {
			body = "{}"
		}
		if path == "/v1/self/leader" {
			body = `{"term": 1}`
		}
		wrong{method, path, body, nil, 404, "not_found", "instance stranger-1"}.check(t,
			h.self("stranger-1"))
	}
}

func TestAnInstanceLivesItsLife(t *testing.T) {
	h := open(t)
	st := h.serving()
	base := h.self(st.Instances[0].ID)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v1/self", "", 200, `"vip":"` + st.VIP},
		{"POST", "/v1/self/ready", "", 204, ""},
		{"PUT", "/v1/self/metrics", `{"queue": 3}`, 204, ""},
		{"GET", "/v1/self", "", 200, `"metrics":{"queue":3}`},
		{"PATCH", "/v1/self/state/hits", "5", 204, ""},
		{"GET", "/v1/self/state/hits", "", 200, "5"},
		{"PUT", "/v1/self/state/a/b", "value", 204, ""},
		{"GET", "/v1/self/state/", "", 200, `"path":"a/b"`},
		{"GET", "/v1/self/state/a/", "", 200, `"path":"a/b"`},
		{"DELETE", "/v1/self/state/a/b", "", 204, ""},
		{"POST", "/v1/self/state/commit", `{"message": "five"}`, 200, `"commit":"`},
		{"POST", "/v1/self/state/push", "", 200, `"commit":"`},
		{"POST", "/v1/self/state/pull", "", 200, `"commit":"`},
		{"POST", "/v1/self/replicate?wait=true", `{"reason": "a test"}`, 202, `"state":"in rotation"`},
		{"POST", "/v1/self/halt", `{"reason": "a test"}`, 200, `"state":"draining"`},
		{"POST", "/v1/self/die", "", 202, `"verb":"die"`},
	} {
		a := ask(t, base, c.method, c.path, c.body)
		if a.status != c.status || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %s: %d %s\nwant %d %s", c.method, c.path, a.status, a.body, c.status, c.want)
		}
	}
	if log := read[[]pando.StateCommit](h.ask("GET", "/v1/services/web/state", "")); len(log) == 0 {
		t.Error("no commit in the state's log")
	}
}

// A number of an application reaches the operator's monitoring.
func TestTheNumbersOfAnApplicationAreScraped(t *testing.T) {
	h := open(t)
	i := h.serving().Instances[0].ID
	host := httptest.NewServer(api.HostMetrics(h.agent.Reporter()))
	t.Cleanup(host.Close)
	own := fmt.Sprintf(`pando_instance_metric{instance=%q,name="queue",service="web",`+
		`tenant="default"} `, i)
	if a := ask(t, host.URL, "GET", "/", ""); strings.Contains(a.body, own) ||
		!strings.Contains(a.body, `pando_agent_publishes_total{result="published"} `) {
		t.Errorf("before: %s", a.body)
	}
	ask(t, h.self(i), "PUT", "/v1/self/metrics", `{"queue": 12}`)
	ask(t, h.self(i), "POST", "/v1/self/state/push", "")
	a := ask(t, host.URL, "GET", "/", "")
	for _, want := range []string{own + "12\n", "pando_agent_instances 1\n",
		`pando_agent_merges_total{result="merged"} 1` + "\n"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("no %s in %s", want, a.body)
		}
	}
}

func TestAnInstanceIsTold(t *testing.T) {
	h := open(t)
	st := h.serving()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		h.self(st.Instances[0].ID)+"/v1/self/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Last-Event-ID", "1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	h.ask("POST", "/v1/services/web/pin", `{"instances": 3}`)
	id := false
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		id = id || strings.HasPrefix(in.Text(), "id: ")
		if strings.HasPrefix(in.Text(), "data: ") && strings.Contains(in.Text(), `"kind":"budget"`) &&
			strings.Contains(in.Text(), `"instances":3`) {
			if !id {
				t.Error("the event has no id")
			}
			return
		}
	}
	t.Error("the stream ended without the new budget")
}

func TestOneRequestIsOutstanding(t *testing.T) {
	h := open(t)
	st := h.serving()
	h.registry.Fail(nil)
	base := h.self(st.Instances[0].ID)
	// The budget is four. Each ask is granted, refused or pending, and a refusal names its intent.
	for range 5 {
		a := ask(t, base, "POST", "/v1/self/replicate", `{"reason": "more"}`)
		if a.status == http.StatusAccepted {
			continue
		}
		p := read[api.Problem](a)
		if a.status != http.StatusConflict || p.Intent == nil || p.Intent.ID == "" {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if p.Code == "refused" && !strings.Contains(p.Detail, "max") {
			t.Errorf("the refusal does not name the budget: %s", p.Detail)
		}
	}
}
