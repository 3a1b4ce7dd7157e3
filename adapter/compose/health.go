package compose

import (
	"cmp"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// Compose's defaults of a health check, in seconds and tries.
const (
	intervalDefault = 30
	timeoutDefault  = 30
	retriesDefault  = 3
	// readyWithin is the time for a start without a health check. Compose has no limit.
	readyWithin = 300
)

// health converts the health check: an instance takes traffic once it succeeds. Without one, an
// instance takes traffic once its first port accepts a connection, or once its program runs.
func (c *converter) health(s types.ServiceConfig, out *pando.Spec) {
	h, at := s.HealthCheck, []string{"services", s.Name, "healthcheck"}
	if h != nil && (h.Disable || len(h.Test) > 0 && h.Test[0] == "NONE") {
		c.warn(at, "the health check of the image stays: `live` of the spec can replace it")
		h = nil
	}
	if h == nil || len(h.Test) == 0 {
		if h != nil {
			c.warn(at, "has no test: the health check of the image stays, with its own numbers")
		}
		// With a TCP port, the deploy takes the health check of the image, or else that port.
		if len(out.Ports) == 0 || out.Ports[0].Protocol != pando.TCP {
			out.Health.Ready = pando.Probe{Kind: pando.ProbeStarted}
		}
		out.Health.ReadySecondsMax = readyWithin
		return
	}
	probe := pando.Probe{Kind: pando.ProbeExec, Command: h.Test[1:]}
	switch {
	case h.Test[0] == "CMD-SHELL":
		probe.Command = append([]string{"/bin/sh", "-c"}, h.Test[1:]...)
	case h.Test[0] != "CMD":
		probe.Command = h.Test
	}
	if len(probe.Command) == 0 {
		c.deny(at, "the test has no command")
		return
	}
	out.Health.Ready, out.Health.Live = probe, probe
	out.Health.IntervalSeconds = cmp.Or(duration(h.Interval), intervalDefault)
	out.Health.TimeoutSeconds = cmp.Or(duration(h.Timeout), timeoutDefault)
	out.Health.Fall = retriesDefault
	if h.Retries != nil {
		out.Health.Fall = int(min(max(*h.Retries, 1), 1000))
	}
	tries := float64(out.Health.Fall) * (out.Health.IntervalSeconds + out.Health.TimeoutSeconds)
	if h.StartPeriod == nil && h.StartInterval == nil {
		out.Health.ReadySecondsMax = max(tries, 30)
		return
	}
	out.Health.Startup = pando.Startup{
		Probe: probe, IntervalSeconds: duration(h.StartInterval),
		TimeoutSeconds: out.Health.TimeoutSeconds, SecondsMax: duration(h.StartPeriod) + tries,
	}
}
