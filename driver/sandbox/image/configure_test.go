package image

import (
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

// The start period of a healthcheck is the startup probe. Its time has the tries after the period
// too, with Docker's numbers where the image has none.
func TestTheStartPeriodOfAHealthcheck(t *testing.T) {
	check := &v1.HealthConfig{Test: []string{"CMD", "check"}, StartPeriod: time.Minute}
	of := func() pando.Startup {
		return configOf(&v1.ConfigFile{Config: v1.Config{Healthcheck: check}}).Health.Startup
	}
	if up := of(); up.SecondsMax != 60+3*60 || up.Probe.Kind != pando.ProbeExec {
		t.Errorf("with Docker's numbers: %+v", up)
	}
	check.Interval, check.Timeout, check.Retries = 5*time.Second, time.Second, 2
	if up := of(); up.SecondsMax != 60+12 || up.TimeoutSeconds != 1 {
		t.Errorf("with its own numbers: %+v", up)
	}
	check.StartPeriod = 0
	if up := of(); up.Probe.Kind != pando.ProbeExplicit {
		t.Errorf("without a period: %+v", up)
	}
}
