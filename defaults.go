package pando

import (
	"cmp"
	"reflect"
)

// WithDefaults returns the spec with every default filled in, so that readers need no defaults of
// their own.
func (s Spec) WithDefaults() Spec {
	fill(&s.Tenant, DefaultTenant)
	if s.IsJob() {
		fill(&s.Restart, RestartNo)
		s.Scale.Zero = s.Scale.Min == 0
		fill(&s.Job.Parallel, 1)
		if s.Job.Schedule != "" {
			fill(&s.Job.Zone, "UTC")
			s.Job.Overlap = cmp.Or(s.Job.Overlap, OverlapForbid)
		}
	}
	if s.IsVM() {
		fill(&s.VM.MemoryBytes, VMMemoryBytes)
		fill(&s.VM.CPUs, 1)
		fill(&s.StopSignal, PowerButton)
		fill(&s.Resources.MemoryBytes, s.VM.MemoryBytes+VMOverheadBytes)
	}
	fill(&s.StopSignal, "SIGTERM")
	fill(&s.StopSeconds, 10)
	fill(&s.DrainSecondsMax, drainSeconds)
	fill(&s.Restart, RestartAlways)
	if n := len(s.Endpoints); n > 0 {
		fill(&s.Scale.Min, n)
		fill(&s.Scale.Max, n)
		s.Health = s.healthOfEndpoints()
	}
	if up := &s.Health.Startup; up.Probe.Kind != ProbeExplicit {
		fill(&up.IntervalSeconds, 0.05)
		fill(&up.TimeoutSeconds, 1)
		fill(&up.SecondsMax, 300)
	}
	fill(&s.Health.ReadySecondsMax, 30)
	fill(&s.Health.IntervalSeconds, 1)
	fill(&s.Health.TimeoutSeconds, 1)
	fill(&s.Health.Fall, 3)
	if !reflect.DeepEqual(s.Hooks, Hooks{}) {
		fill(&s.Hooks.SecondsMax, 30)
	}
	// The order looks at Max as it is given. Nearly every spec has 1 after the lines below. An
	// endpoint runs already, so two instances may stand for it.
	one := (s.Scale.Max == 1 || s.Ordinals()) && len(s.Endpoints) == 0
	if s.Rollout.Order == "" && one {
		s.Rollout.Order = StopFirst
	}
	fill(&s.Rollout.Order, StartFirst)
	if !s.Scale.Zero {
		fill(&s.Scale.Min, 1)
	}
	s.Scale.Max = max(s.Scale.Max, s.Scale.Min, 1)
	fill(&s.Scale.QuietSeconds, 30)
	if s.Scale.By == ByScores {
		fill(&s.Scale.Up, 0.6)
		fill(&s.Scale.Down, 0.1)
	}
	fill(&s.Rollout.Surge, 1)
	fill(&s.Rollout.HealthySeconds, 1)
	if s.Rollout.Canary > 0 {
		fill(&s.Rollout.SoakSeconds, 30)
		fill(&s.Rollout.DeadlineSeconds, 600)
	}
	if s.Rollout.Gate.Metric != "" {
		fill(&s.Rollout.Gate.WorseThan, 1.5)
	}
	return s
}

// healthOfEndpoints returns the probes of endpoints that Pando did not start. An endpoint that is
// down comes back by itself, so it has time.
func (s Spec) healthOfEndpoints() Health {
	h := s.Health
	dials := len(s.Ports) > 0 && s.Ports[0].Protocol == TCP
	if dials && h.Ready.Kind == "" && h.Live.Kind == "" {
		h.Ready, h.Live = Probe{Kind: ProbeTCP}, Probe{Kind: ProbeTCP}
	}
	fill(&h.Ready.Kind, ProbeStarted)
	fill(&h.ReadySecondsMax, 300)
	return h
}

// fill sets a field that has no value.
func fill[T comparable](field *T, value T) {
	var none T
	if *field == none {
		*field = value
	}
}
