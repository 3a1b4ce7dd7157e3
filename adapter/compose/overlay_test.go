package compose

import (
	"context"
	"strings"
	"testing"

	"pando.run/pando"
)

const shop = `name: shop
services:
  web:
    image: web:1
    ports: ["80:80"]
    environment: {LOG: info, DB: prod}
    deploy: {replicas: 4}
  db:
    image: db:1
`

func overlaid(t *testing.T, changes string) (Result, error) {
	t.Helper()
	return Parse(context.Background(), "c.yaml", []byte(shop), t.TempDir(), Options{
		Overlay: "c.staging.yaml", Changes: []byte(changes),
	})
}

// An overlay is merged as Compose merges a second file: environments key by key, and its name is
// that of the project.
func TestAnOverlayIsMerged(t *testing.T) {
	r, err := overlaid(t, "name: staging\nservices:\n  web:\n    image: web:2\n"+
		"    environment: {DB: stage}\n    deploy: {replicas: 1}\n")
	if err != nil || len(r.Specs) != 2 {
		t.Fatal(r, err)
	}
	var web pando.Spec
	for _, s := range r.Specs {
		if s.Tenant != "staging" {
			t.Errorf("%s is of tenant %s", s.Name, s.Tenant)
		}
		if s.Name == "web" {
			web = s
		}
	}
	if web.Image.Reference != "web:2" || web.Environment["LOG"] != "info" ||
		web.Environment["DB"] != "stage" || web.Scale.Min != 1 || len(web.Ports) != 1 {
		t.Errorf("the service is %+v", web)
	}
}

// An error in an overlay names its file and line.
func TestErrorsNameTheOverlayOfACompose(t *testing.T) {
	for changes, want := range map[string]string{
		"services:\n  web:\n    privileged: true\n": "c.staging.yaml:3:5: services.web.privileged",
		"services:\n  web:\n    cap_add: [BPF]\n":   "services.web.cap_add: BPF is refused",
		"include: [x.yaml]\n":                       "c.staging.yaml:1:1: include",
		"services:\n  web: {extends: {file: x}}\n":  "c.staging.yaml:2:",
		"services:\n\tweb: x\n":                     "c.staging.yaml:2:",
		"services: {web: {imagee: x}}\n":            "imagee",
		strings.Repeat("#", 2<<20):                  "larger than 1 MiB",
	} {
		_, err := overlaid(t, changes)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", changes, err, want)
		}
	}
}
