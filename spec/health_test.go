package spec

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestWrongProbesNameTheirPlace(t *testing.T) {
	const probe = "health.startup.probe: "
	for text, want := range map[string]string{
		"live: reported":                 "a.yaml:3:10: health.live: reported is a probe of",
		"startup: {probe: reported}":     probe + "the one report of the program is for health.ready",
		"startup: {probe: started}":      probe + "started is a probe of health.ready",
		"startup: {probe: tcp}":          probe + "names no port",
		"startup: {within: 5m}":          "health.startup.within: has no effect without a probe",
		"startup: {interval: 5s}":        "health.startup.interval: has no effect without a probe",
		"startup: {timeout: never}":      "health.startup.timeout: want a duration",
		"startup: {failureThreshold: 3}": "health.startup.failureThreshold: unknown key",
		"start_period: 5m":               "health.startup, such as startup: {probe: exec ./check",
	} {
		_, err := Parse("a.yaml", []byte(minimal+"health: {"+text+"}"), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	startup := "health: {startup: {probe: tcp 7000}, ready: tcp 7000}\n"
	for text, want := range map[string]string{
		"kind: job\n" + startup: "a job has no probes",
		"endpoints: [192.0.2.1:80]\nports: [80:7000]\n" + startup: probe + "has no effect beside " +
			"endpoints",
		"startupProbe: {}": "health.startup, such as health: {startup:",
	} {
		_, err := Parse("a.yaml", []byte(minimal+text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The startup probe of an image holds where the spec names no ready probe, and is no word of the
// operator.
func TestTheStartupProbeOfAnImage(t *testing.T) {
	check := pando.Probe{Kind: pando.ProbeExec, Command: []string{"check"}}
	c := pando.ImageConfig{Command: []string{"x"}, Health: pando.Health{Live: check,
		Startup: pando.Startup{Probe: check, SecondsMax: 90}}}
	given := func(h pando.Health) pando.Spec {
		return FromImage(pando.Spec{Name: "web", Image: pando.Image{Reference: "web"}, Health: h},
			pando.Image{Reference: "web", Digest: "sha256:1"}, c)
	}
	s := given(pando.Health{})
	if s.Health.Startup.SecondsMax != 90 || !reflect.DeepEqual(s.Health.Ready, check) {
		t.Errorf("from an image: %+v", s.Health)
	}
	if s := Own(s); s.Health.Startup.Probe.Kind != pando.ProbeExplicit {
		t.Errorf("the operator's own words have the startup probe of the image: %+v", s.Health)
	}
	s = given(pando.Health{Ready: pando.Probe{Kind: pando.ProbeTCP}})
	if s.Health.Startup.SecondsMax > 0 {
		t.Errorf("beside a ready probe of the spec: %+v", s.Health)
	}
}

// An image's healthcheck is none of a job's words.
func TestAJobTakesNoProbeFromItsImage(t *testing.T) {
	s := FromImage(pando.Spec{Name: "web", Kind: pando.KindJob}, pando.Image{}, webImage)
	if s.Health.Ready.Kind != pando.ProbeExplicit || s.Health.Live.Kind != pando.ProbeExplicit {
		t.Errorf("a job has the probes %+v", s.Health)
	}
}

// A probe by HTTP has a query, headers and TLS, and is written as it was read.
func TestProbesByHTTPAreReadAsWritten(t *testing.T) {
	for text, want := range map[string]pando.Probe{
		"http GET /ok?a=1&b=2": {Path: "/ok?a=1&b=2"},
		"https GET :8443/ok -H 'Host: example.org'": {TLS: true, Port: 8443, Path: "/ok",
			Headers: []string{"Host: example.org"}},
		"http GET / -H Host:localhost -H 'X-Token:  a b'": {Path: "/",
			Headers: []string{"Host: localhost", "X-Token: a b"}},
	} {
		want.Kind = pando.ProbeHTTP
		got, err := parseProbe(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
		if again, err := parseProbe(probeText(got)); err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s is written as %s: %+v, %v", text, probeText(got), again, err)
		}
	}
	for text, want := range map[string]string{
		"http GET / -H a:b -H": "want -H 'NAME: VALUE'", "http GET / -X POST": "a probe:",
		"http GET / -H 'A B: c'": "want NAME: VALUE", "http GET / -H 'Content-Length: 1'": "by itself",
		"http GET / -H x": "want NAME: VALUE", `http GET / -H 'A: "b' -H 'C`: "quote",
	} {
		_, err := Parse("a.yaml", []byte(minimal+"ports: [80]\nhealth: {ready: "+strconv.Quote(text)+"}"), "/")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	s := pando.Spec{Name: "x", Command: []string{"x"}, Ports: []pando.Port{{Published: 1, Target: 1,
		Protocol: pando.TCP}}, Health: pando.Health{Ready: pando.Probe{Kind: pando.ProbeTCP, TLS: true}}}
	if err := Check(s); err == nil || !strings.Contains(err.Error(), "TLS and headers are for http") {
		t.Errorf("TLS of a probe by TCP: %v", err)
	}
}
