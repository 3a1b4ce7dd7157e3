package api

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"pando.run/pando"
)

// Every answer to a GET has the form that the document gives it, with services, runs and tenants.
func TestAnswersHaveTheFormOfTheDocument(t *testing.T) {
	h := open(t)
	h.serving()
	for _, change := range [][3]string{
		{"POST", "/v1/services", `{"name": "job", "kind": "job", "command": ["true"]}`},
		{"POST", "/v1/services", `{"name": "shop", "tenant": "acme", "command": ["true"]}`},
		{"PATCH", "/v1/tenants/acme", `{"instances": 5}`},
		{"POST", "/v1/services/web/runs", `{"command": ["true"]}`},
		{"POST", "/v1/services/web/pin", `{"instances": 2, "for_seconds": 60}`},
	} {
		if a := h.ask(change[0], change[1], change[2], "Pando-Operator", "ann"); a.status >= 300 {
			t.Fatalf("%v: %d %s", change, a.status, a.body)
		}
	}
	text := h.ask("GET", "/openapi.json", "").body
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for path, item := range doc.(map[string]any)["paths"].(map[string]any) {
		get, _ := item.(map[string]any)["get"].(map[string]any)
		if get == nil || strings.HasSuffix(path, "/watch") || strings.HasSuffix(path, "/logs") {
			continue
		}
		at := strings.NewReplacer("~", "~0", "/", "~1").Replace(path)
		s, err := c.Compile("openapi.json#/paths/" + url.PathEscape(at) +
			"/get/responses/200/content/application~1json/schema")
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, name := range []string{"web", "job"} {
			asked := strings.NewReplacer("{name}", name, "{tenant}", "acme").Replace(path)
			if strings.HasSuffix(path, "/steering") {
				asked += "?service=web"
			}
			a := h.ask("GET", asked, "")
			if a.status != 200 {
				t.Logf("GET %s: %d %s", asked, a.status, a.body)
				continue
			}
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(a.body)))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(v); err != nil {
				t.Errorf("GET %s: %v\n%s", asked, err, a.body)
			}
			checked++
		}
	}
	if checked < 20 {
		t.Errorf("%d answers were checked", checked)
	}
}

// What the document forbids is refused with 400, and names the parameter. No host is blamed.
func TestWhatTheDocumentForbidsIsRefused(t *testing.T) {
	h := open(t)
	h.serving()
	const pin = "/v1/services/web/pin"
	for _, w := range []wrong{
		{"GET", "/v1/volumes?service=%01", "", nil, 400, "invalid", "query.service"},
		{"GET", "/v1/snapshots?service=A", "", nil, 400, "invalid", "query.service"},
		{"GET", "/v1/stats?service=web&tenant=..", "", nil, 400, "invalid", "query.tenant"},
		{"GET", "/v1/steering?service=a&service=", "", nil, 400, "invalid", "query.service"},
		{"GET", "/v1/watch?service=%ff", "", nil, 400, "invalid", "query.service"},
		{"GET", "/v1/bills?tenant=A", "", nil, 400, "invalid", "query.tenant"},
		{"GET", "/v1/bills?since=", "", nil, 400, "invalid", "query.since"},
		{"GET", "/v1/bills?by=", "", nil, 400, "invalid", "query.by"},
		{"GET", "/v1/services/web/why?max=", "", nil, 400, "invalid", "query.max"},
		{"POST", pin, `{"instances": 4097}`, nil, 400, "invalid", "4096"},
		{"PUT", "/v1/secrets/%C2%93", `{"content": "MDAw"}`, nil, 400, "invalid", "path.secret"},
		{"PATCH", "/v1/tenants/acme", `{"publish_per_second": 1001}`, nil, 400, "invalid",
			"publish_per_second"},
		{"PATCH", "/v1/tenants/acme", `{"disk_bytes": 4503599627370497}`, nil, 400, "invalid", "disk_bytes"},
		{"POST", pin, `{"instances": 1, "for_seconds": null}`, nil, 400, "invalid", "for_seconds is null"},
		{"POST", "/v1/services/web/rollback", `{"to": null}`, nil, 400, "invalid", "to is null"},
		{"POST", "/v1/services/web/rollback", `{"reason": null}`, nil, 400, "invalid", "reason is null"},
	} {
		w.check(t, h.http.URL)
	}
	id := read[pando.ServiceStatus](h.ask("GET", "/v1/services/web", "")).Instances[0].ID
	wrong{"PUT", "/v1/self/metrics", `{"queue": null}`, nil, 400, "invalid", "queue is null"}.check(t,
		h.self(id))
}
