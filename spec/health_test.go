package spec

import (
	"reflect"
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
