package spec

import (
	"reflect"
	"strings"
	"testing"

	"pando.run/pando"
)

const ordinals = minimal + "kind: stateful\n"

func TestAStatefulServiceInASpec(t *testing.T) {
	const data = "volumes: [\"data:/d\"]\n"
	for text, want := range map[string]string{
		minimal + "kind: batch":                   "kind: want one of job, stateful",
		ordinals:                                  "in a volume of its own: add volumes",
		ordinals + "volumes: [\"d:/d:shared\"]":   "in a volume of its own: add volumes",
		minimal + "hooks: {joined: ./synced}":     "with kind: stateful alone",
		ordinals + data + "scale: {max: 3}":       "service has a fixed number",
		ordinals + data + "scale: {min: 0}":       "at least one ordinal",
		ordinals + data + "scale: {min: 65}":      "at most 64 ordinals",
		ordinals + data + "hooks: {recover: ./p}": "add hooks.bootstrap",
		ordinals + data + "hooks: {joined: []}":   "is empty: want a command",
		ordinals + data + "hooks: {timeout: no}":  "a duration such as",
		ordinals + data + "hooks: {first: ./p}":   "unknown",
		ordinals + data + "hooks: {quorum: 1}":    "counts positions: add hooks.recover",
		ordinals + data + "hooks: {quorum: 0}":    "want a whole number from 1",
		ordinals + data + "scale: {min: 3}\nhooks: {bootstrap: ./b, recover: ./p, quorum: 4}": "" +
			"is more than the 3 ordinals",
		ordinals + data + "rollout: {order: start-first}": "two instances cannot have one volume",
	} {
		_, err := Parse("a.yaml", []byte(text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "a.yaml:") {
			t.Errorf("%s: got %v, want %q with its place", text, err, want)
		}
	}
	all, err := Parse("a.yaml", []byte(ordinals+data+"scale: {min: 3}\nplace: {spread: host}\n"+
		"hooks: {bootstrap: ./first -n, recover: [./where], joined: ./synced, quorum: 2, "+
		"timeout: 5s}\n"), "/d")
	if err != nil {
		t.Fatal(err)
	}
	s := all[0].WithDefaults()
	hooks := pando.Hooks{Bootstrap: []string{"./first", "-n"}, Recover: []string{"./where"},
		Joined: []string{"./synced"}, Quorum: 2, SecondsMax: 5}
	if !reflect.DeepEqual(s.Hooks, hooks) || !s.Stateful() || s.Rollout.Order != pando.StopFirst {
		t.Errorf("%+v, rollout %s", s.Hooks, s.Rollout.Order)
	}
	again, err := Parse("b.yaml", Format(s), "/d")
	if err != nil || !reflect.DeepEqual(again[0].WithDefaults(), s) {
		t.Errorf("formatted, the spec is %+v (%v)\n%s", again, err, Format(s))
	}
}
