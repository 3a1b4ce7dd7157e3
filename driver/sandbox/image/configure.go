package image

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

// Docker's defaults of a healthcheck.
const (
	tryDefault     = 30 * time.Second // also its time limit
	retriesDefault = 3
)

// triesSeconds returns the time in which the probes of a healthcheck fail.
func triesSeconds(h *v1.HealthConfig) float64 {
	one := cmp.Or(h.Interval, tryDefault) + cmp.Or(h.Timeout, tryDefault)
	return float64(cmp.Or(h.Retries, retriesDefault)) * one.Seconds()
}

// shellOf returns the words before a shell command, as the image's SHELL names them.
func shellOf(f *v1.ConfigFile) []string {
	if len(f.Config.Shell) > 0 {
		return slices.Clone(f.Config.Shell)
	}
	return []string{"/bin/sh", "-c"}
}

// configOf returns the part of a configuration that a spec can have as well.
func configOf(f *v1.ConfigFile) pando.ImageConfig {
	c := pando.ImageConfig{
		Architecture: f.Architecture, Entrypoint: f.Config.Entrypoint, Command: f.Config.Cmd,
		WorkingDir: f.Config.WorkingDir, User: f.Config.User, StopSignal: f.Config.StopSignal,
		Exposed: slices.Sorted(maps.Keys(f.Config.ExposedPorts)),
		Volumes: slices.Sorted(maps.Keys(f.Config.Volumes)),
	}
	for _, pair := range f.Config.Env {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			continue
		}
		if c.Environment == nil {
			c.Environment = map[string]string{}
		}
		c.Environment[k] = v
	}
	h := f.Config.Healthcheck
	if h == nil || len(h.Test) < 2 {
		return c
	}
	switch h.Test[0] {
	case "CMD":
		c.Health.Live.Command = h.Test[1:]
	case "CMD-SHELL":
		c.Health.Live.Command = append(shellOf(f), h.Test[1])
	default:
		return c // NONE
	}
	c.Health.Live.Kind = pando.ProbeExec
	c.Health.IntervalSeconds = h.Interval.Seconds()
	c.Health.TimeoutSeconds = h.Timeout.Seconds()
	c.Health.Fall = h.Retries
	if h.StartPeriod > 0 {
		c.Health.Startup = pando.Startup{
			Probe: c.Health.Live, TimeoutSeconds: h.Timeout.Seconds(),
			SecondsMax: h.StartPeriod.Seconds() + triesSeconds(h),
		}
	}
	return c
}
