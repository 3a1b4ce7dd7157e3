package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each file counts once, by its gravest reason, and a template gives its file variables.
func TestFilesAreCountedByTheirReasons(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"a/docker-compose.yml": "services: {a: {image: 'a:${TAG}', environment: {B: '${LIST}'}}}\n",
		"a/template.toml":      "[variables]\nX = \"1\"\n[config.env]\nTAG = \"7\"\nLIST = \"${password:9}\"\n",
		"b/compose.yaml":       "services: {a: {image: a, privileged: true, pre_stop: [{command: x}]}}\n",
		"c/compose.yaml": "services: {a: {image: a, privileged: true, " +
			"volumes: ['/var/run/docker.sock:/s']}}\n",
		"d/compose.yaml":  "services: {a: {image: 'a:${TAG}'}}\n",
		"e/compose.yaml":  "services: {a: {build: .}}\n",
		"f/other.yaml":    "services: {a: {build: .}}\n",
		"g/compose.yml":   "services: {a: {image: a, tty: true}}\n",
		"h/compose.yml":   "services: {a: {image: 'a${TAG}'}}\n",
		"h/template.toml": "[config]\nenv = [\n  \"TAG=:7\",\n]\nmounts = []\n",
	} {
		at := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := measure(t.Context(), dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r.print(&out)
	if want := "\n7,3,1,1,1,1,1,75.0%\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("the row is %s, want %s", out.String(), want)
	}
}
