package spec

import (
	"maps"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestNeedsAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]map[pando.ServiceName]pando.Need{
		"needs: [db, cache]":                      {"db": "started", "cache": "started"},
		"needs: {db: healthy, job: completed}":    {"db": "healthy", "job": "completed"},
		"needs:\n  db: started\n  cache: healthy": {"db": "started", "cache": "healthy"},
	} {
		specs, err := Parse("a.yaml", []byte("name: web\ncommand: x\n"+text+"\n"), "/d")
		if err != nil || !maps.Equal(specs[0].Needs, want) {
			t.Errorf("%q: %v %v, want %v", text, specs, err, want)
			continue
		}
		again, err := Parse("a.yaml", Format(specs[0]), "/d")
		if err != nil || !maps.Equal(again[0].Needs, want) {
			t.Errorf("%q: after Format %v %v", text, again, err)
		}
	}
}

func TestWrongNeedsNameTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"needs: db":                  "a.yaml:3:8: needs: want services and conditions",
		"needs: {db: ready}":         "a.yaml:3:13: needs.db: want one of started, healthy, completed",
		"needs: [db, db]":            "needs[1]: db is here twice",
		"needs: [UP]":                "a.yaml:3:9: needs[0]: want a service name",
		"needs: [web]":               "cannot wait for itself",
		"health: {live: started}":    "health.live: started is a probe of health.ready",
		"needs: {db: {a: b}}":        "needs.db: want one of",
		"depends_on: [db]":           "`needs`, such as needs: {db: healthy}",
		"health: {ready: started 1}": "want a probe",
	} {
		_, err := Parse("a.yaml", []byte("name: web\ncommand: x\n"+text+"\n"), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	many := pando.Spec{Name: "web", Command: []string{"x"}, Needs: map[pando.ServiceName]pando.Need{}}
	for n := range pando.NeedsMax + 1 {
		many.Needs[pando.ServiceName("s"+strings.Repeat("a", n))] = pando.NeedStarted
	}
	if err := Check(many.WithDefaults()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too many needs: %v", err)
	}
}
