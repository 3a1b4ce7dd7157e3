package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestEndpointsContradictAProgram(t *testing.T) {
	const good = "name: old\nports: [\"80:8080\"]\nendpoints: [192.0.2.1, \"192.0.2.2 weight 5\"]\n"
	all, err := Parse("f", []byte(good), "/")
	if err != nil || len(all[0].Endpoints) != 2 || all[0].Endpoints[1].Weight != 5 {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := Check(all[0]); err != nil {
		t.Errorf("the read spec: %v", err)
	}
	if err := Check(all[0].WithDefaults()); err != nil {
		t.Errorf("with its defaults: %v", err)
	}
	for more, want := range map[string]string{
		"command: sleep 1":              "command: has no effect beside endpoints",
		"image: alpine":                 "image: has no effect",
		"state: {hits: counter}":        "state: has no effect",
		"scale: {max: 3}":               "scale.max: 3 beside 2 endpoints",
		"scale: {by: x, target: 1}":     "scale.by: has no effect",
		"health: {live: tcp 9}":         "port 9 is no target",
		"health: {live: exec true}":     "here is no program",
		"health: {live: udp}":           "udp port 8080 is no target",
		"health: {live: udp 8080}":      "udp port 8080 is no target",
		"balance: {by: score, every: 1": "f:4:",
	} {
		_, err := Parse("f", []byte(good+more+"\n"), "/")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
	for _, probe := range []string{"ping", "tcp", "http GET /ok"} {
		if _, err := Parse("f", []byte(good+"health: {live: "+probe+"}\n"), "/"); err != nil {
			t.Errorf("%s: %v", probe, err)
		}
	}
	udp := strings.Replace(good, "80:8080", "53:53/udp", 1) + "health: {live: "
	if _, err := Parse("f", []byte(udp+"udp}"), "/"); err != nil {
		t.Errorf("udp: %v", err)
	}
	if _, err := Parse("f", []byte(udp+"tcp}"), "/"); err == nil {
		t.Error("tcp of a service by UDP alone reads")
	}
	port := pando.External{Address: all[0].Endpoints[0].Address, Port: 9}
	two := all[0]
	two.Ports = append(two.Ports, pando.Port{Published: 81, Target: 81, Protocol: pando.TCP})
	two.Endpoints = []pando.External{port}
	if err := Check(two); err == nil || !strings.Contains(err.Error(), "one published port") {
		t.Errorf("a port with two published ones: %v", err)
	}
	two.Endpoints, two.Ports = []pando.External{port, port}, two.Ports[:1]
	if err := Check(two); err == nil || !strings.Contains(err.Error(), "listed twice") {
		t.Errorf("the same twice: %v", err)
	}
}
