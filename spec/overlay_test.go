package spec

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const overBase = `name: web
command: [serve, --port, "80"]
environment: {LOG: info, DB: prod}
scale: {min: 4, max: 8}
ports: ["80:8080"]
---
name: job
command: [work]
`

func TestAnOverlayChangesTheServicesOfItsName(t *testing.T) {
	over := `name: web
tenant: staging
command: [serve, -v]
environment: {DB: stage, EXTRA: x}
scale: {min: 1}
ports:
`
	specs, err := ParseWith("f.yaml", []byte(overBase), "f.staging.yaml", []byte(over), "/")
	if err != nil || len(specs) != 2 {
		t.Fatal(specs, err)
	}
	web, job := specs[0], specs[1]
	if web.Tenant != "staging" || strings.Join(web.Command, " ") != "serve -v" ||
		web.Environment["LOG"] != "info" || web.Environment["DB"] != "stage" ||
		web.Environment["EXTRA"] != "x" || web.Scale.Min != 1 || web.Scale.Max != 8 ||
		len(web.Ports) > 0 || job.Command[0] != "work" || job.Tenant != "" {
		t.Errorf("the services are %+v and %+v", web, job)
	}
	plain, err := Parse("f.yaml", []byte(overBase), "/")
	if err != nil || plain[0].Scale.Min != 4 {
		t.Errorf("without an overlay: %+v, %v", plain, err)
	}
}

// Each error names the file and the place of the value that is wrong.
func TestErrorsNameTheOverlay(t *testing.T) {
	for _, c := range [][2]string{
		{"name: wbe\n", "o.yaml:1:1: name: f.yaml has no service wbe to change: it"},
		{"scale: {min: 1}\n", "o.yaml:1:1: name: is missing: f.yaml has 2 services"},
		{"name: web\nscale: {mim: 1}\n", "o.yaml:2:9: scale.mim: unknown key: did you mean `min`?"},
		{"name: web\nscale: {min: 9}\n", "f.yaml:4:17: scale.max: max 8 is less than min 9"},
		{"name: web\nscale: 3\n", "o.yaml:2:8: scale: want a map"},
		{"name: web\n\tx: 1\n", "o.yaml:2:1: a tab indents"},
		{"- a\n", "o.yaml:1:1"},
		{"name: web\nname: job\n", "o.yaml:2:1: name: this key is here twice"},
		{"name: web\ncommand:\n", ": command: is missing"},
		{"name: web\nenvironment: {A: }\n", ""},
		{"name: web\nports: [\"0:8080\"]\n", "o.yaml:2:9: ports[0]"},
		{"", ""},
		{"name: job\nenvironment: {A: [1]}\n", "o.yaml:2:18: environment.A: want a text"},
	} {
		over, want := c[0], c[1]
		_, err := ParseWith("f.yaml", []byte(overBase), "o.yaml", []byte(over), "/")
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", over, err, want)
		}
	}
}

func TestAnEnvironmentNeedsItsFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "app.yaml")
	if err := os.WriteFile(filepath.Join(dir, "app.staging.yaml"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	name, data, err := ReadOverlay(context.Background(), path, "staging")
	if err != nil || string(data) != "x" || filepath.Base(name) != "app.staging.yaml" {
		t.Errorf("staging: %s, %q, %v", name, data, err)
	}
	for env, want := range map[string]string{"stagin": "there is no " + dir + "/app.stagin.yaml",
		"../x": "environment", "": "environment"} {
		if _, _, err := ReadOverlay(context.Background(), path, env); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", env, err, want)
		}
	}
}
