package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
)

// feed replaces the standard input for one test.
func feed(t *testing.T, text string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	t.Cleanup(func() { os.Stdin = before; r.Close() })
	os.Stdin = r
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
}

func TestAnOrderThatIsNoneIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "half an order": `{"PinDir": "/x", "Uplinks": [`,
		"another type": `{"FlowsMax": "many"}`, "no object": `[]`,
	} {
		feed(t, text)
		if err := run(); err == nil {
			t.Errorf("%s: run succeeded", name)
		}
	}
}

// The tests of an upgrade send an order as JSON: a field that does not survive would be ignored.
func TestAnOrderSurvivesItsText(t *testing.T) {
	want := Order{PinDir: "/sys/fs/bpf/x", Uplinks: []string{"eth0"}, FlowsMax: 7,
		Table: pando.SteeringTable{Service: pando.DefaultService("web")}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Order
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.PinDir != want.PinDir || got.Uplinks[0] != "eth0" || got.FlowsMax != 7 ||
		got.Table.Service != want.Table.Service {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
