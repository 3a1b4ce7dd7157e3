package spec

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// People copy the examples. The parser and the schema accept each, and an editor finds the schema.
func TestExamplesAreGoodSpecs(t *testing.T) {
	files, err := filepath.Glob("../examples/*/pando.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	s := compiledSchema(t)
	for _, file := range files {
		specs, err := Load(t.Context(), file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, one := range specs {
			if err := Check(one); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		hint, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
		if _, err := os.Stat(filepath.Join(filepath.Dir(file), hint)); !ok || err != nil {
			t.Errorf("%s: the first line %q does not lead an editor to the schema", file, first)
		}
		if err := s.Validate(document(t, text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// document returns a YAML text as a JSON document.
func document(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}
