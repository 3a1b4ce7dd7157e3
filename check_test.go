package pando

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckNamesWhatIsWrong(t *testing.T) {
	good := func() Spec {
		return Spec{
			Name: "web", Command: []string{"./web"}, Ports: []Port{{80, 8080, TCP}, {80, 8080, UDP}}, User: "1000:1000",
			Scale: Scale{Min: 1, Max: 8, By: ByConnections, Target: 10}, State: map[string]StateType{"a/b": StateSet},
		}
	}
	if err := good().Check(); err != nil {
		t.Errorf("a good spec: %v", err)
	}
	if err := good().WithDefaults().Check(); err != nil {
		t.Errorf("a good spec with defaults: %v", err)
	}
	for want, spoil := range map[string]func(*Spec){
		`service name ""`:                   func(s *Spec) { s.Name = "" },
		`tenant name "A"`:                   func(s *Spec) { s.Tenant = "A" },
		"command: is empty":                 func(s *Spec) { s.Command = []string{""} },
		"command[1]: has a NUL byte":        func(s *Spec) { s.Command = []string{"x", "a\x00"} },
		"command[0]: is longer":             func(s *Spec) { s.Command = []string{strings.Repeat("x", 1<<20)} },
		"is no name of a variable":          func(s *Spec) { s.Environment = map[string]string{"A=B": "c"} },
		"not an absolute path":              func(s *Spec) { s.WorkingDir = "./x" },
		"user \"a b\"":                      func(s *Spec) { s.User = "a b" },
		"largest id, 4294967294":            func(s *Spec) { s.User = "0:4294967295" },
		"stop_signal":                       func(s *Spec) { s.StopSignal = "9" },
		"stop_seconds: -1":                  func(s *Spec) { s.StopSeconds = -1 },
		"drain_seconds_max: 1e+12":          func(s *Spec) { s.DrainSecondsMax = 1e12 },
		"restart: \"maybe\": want one of a": func(s *Spec) { s.Restart = "maybe" },
		"ports[1]: 80/tcp is published":     func(s *Spec) { s.Ports[1].Protocol = TCP },
		"ports[0]: a port is 0":             func(s *Spec) { s.Ports[0].Target = 0 },
		"ports[0].protocol: \"sctp\"":       func(s *Spec) { s.Ports[0].Protocol = "sctp" },
		"health.ready.kind: \"ping\"":       func(s *Spec) { s.Health.Ready.Kind = "ping" },
		"health.live: exec needs":           func(s *Spec) { s.Health.Live.Kind = ProbeExec },
		"health.live: path":                 func(s *Spec) { s.Health.Live = Probe{Kind: ProbeHTTP, Path: "ok"} },
		"health.ready: names no port":       func(s *Spec) { s.Ports, s.Health.Ready = nil, Probe{Kind: ProbeTCP} },
		"scale.max: 1 is less than min 2":   func(s *Spec) { s.Scale.Min, s.Scale.Max = 2, 1 },
		"scale.warm: 1025":                  func(s *Spec) { s.Scale.Warm = 1025 },
		"scale.by: \"cpu\"":                 func(s *Spec) { s.Scale.By = "cpu" },
		"scale.by: needs a target":          func(s *Spec) { s.Scale.Target = 0 },
		"scale.by: counts what comes":       func(s *Spec) { s.Ports = nil },
		"state: \"../a\"":                   func(s *Spec) { s.State = map[string]StateType{"../a": StateSet} },
		"state.a: \"sum\"":                  func(s *Spec) { s.State = map[string]StateType{"a": "sum"} },
		"resources.cpus: -1":                func(s *Spec) { s.Resources.CPUs = -1 },
		"rollout.order: \"stop\"":           func(s *Spec) { s.Rollout.Order = "stop" },
		"scale.warm: 2: a reserve runs":     func(s *Spec) { s.Scale, s.Rollout.Order = Scale{Max: 1, Warm: 2}, StopFirst },
		"rollout.surge: -1":                 func(s *Spec) { s.Rollout.Surge = -1 },
	} {
		s := good()
		spoil(&s)
		if err := s.Check(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
