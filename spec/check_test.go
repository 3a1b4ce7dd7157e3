package spec

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pando.run/pando"
)

// good returns a valid spec that a test may spoil.
func good() pando.Spec {
	return pando.Spec{
		Name: "web", Command: []string{"./web"}, Ports: []pando.Port{
			{Published: 80, Target: 8080, Protocol: pando.TCP},
			{Published: 80, Target: 8080, Protocol: pando.UDP},
		}, User: "1000:1000",
		Scale: pando.Scale{Min: 1, Max: 8, By: pando.ByConnections, Target: 10},
		State: map[string]pando.StateType{"a/b": pando.StateSet},
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	if err := Check(good()); err != nil {
		t.Errorf("a good spec: %v", err)
	}
	if err := Check(good().WithDefaults()); err != nil {
		t.Errorf("a good spec with defaults: %v", err)
	}
	for want, spoil := range map[string]func(*pando.Spec){
		`service name ""`:            func(s *pando.Spec) { s.Name = "" },
		`tenant name "A"`:            func(s *pando.Spec) { s.Tenant = "A" },
		"command: is empty":          func(s *pando.Spec) { s.Command = []string{""} },
		"command[1]: has a NUL byte": func(s *pando.Spec) { s.Command = []string{"x", "a\x00"} },
		"command[0]: is longer": func(s *pando.Spec) {
			s.Command = []string{strings.Repeat("x", 1<<20)}
		},
		"is no name of a variable": func(s *pando.Spec) {
			s.Environment = map[string]string{"A=B": "c"}
		},
		"not an absolute path":              func(s *pando.Spec) { s.WorkingDir = "./x" },
		"user \"a b\"":                      func(s *pando.Spec) { s.User = "a b" },
		"largest id, 4294967294":            func(s *pando.Spec) { s.User = "0:4294967295" },
		"stop_signal":                       func(s *pando.Spec) { s.StopSignal = "9" },
		"stop_seconds: -1":                  func(s *pando.Spec) { s.StopSeconds = -1 },
		"drain_seconds_max: 1e+12":          func(s *pando.Spec) { s.DrainSecondsMax = 1e12 },
		"restart: \"maybe\": want one of a": func(s *pando.Spec) { s.Restart = "maybe" },
		"ports[1]: 80/tcp is published":     func(s *pando.Spec) { s.Ports[1].Protocol = pando.TCP },
		"ports[0]: a port is 0":             func(s *pando.Spec) { s.Ports[0].Target = 0 },
		"ports[0].protocol: \"sctp\"":       func(s *pando.Spec) { s.Ports[0].Protocol = "sctp" },
		"health.ready.kind: \"pong\"":       func(s *pando.Spec) { s.Health.Ready.Kind = "pong" },
		"health.live: exec needs":           func(s *pando.Spec) { s.Health.Live.Kind = pando.ProbeExec },
		"health.live: path": func(s *pando.Spec) {
			s.Health.Live = pando.Probe{Kind: pando.ProbeHTTP, Path: "ok"}
		},
		"health.ready: names no port": func(s *pando.Spec) {
			s.Ports, s.Health.Ready = nil, pando.Probe{Kind: pando.ProbeTCP}
		},
		"scale.max: 1 is less than min 2": func(s *pando.Spec) { s.Scale.Min, s.Scale.Max = 2, 1 },
		"scale.warm: 4097":                func(s *pando.Spec) { s.Scale.Warm = 4097 },
		"scale.by: invalid: cpu is part":  func(s *pando.Spec) { s.Scale.By = "cpu" },
		"scale.by: needs a target":        func(s *pando.Spec) { s.Scale.Target = 0 },
		"scale.up: has no effect":         func(s *pando.Spec) { s.Scale.Up = 1 },
		"scale.by: counts traffic":        func(s *pando.Spec) { s.Ports = nil },
		"state: \"../a\"": func(s *pando.Spec) {
			s.State = map[string]pando.StateType{"../a": pando.StateSet}
		},
		"state.a: \"sum\"": func(s *pando.Spec) {
			s.State = map[string]pando.StateType{"a": "sum"}
		},
		"resources.cpus: -1":      func(s *pando.Spec) { s.Resources.CPUs = -1 },
		"rollout.order: \"stop\"": func(s *pando.Spec) { s.Rollout.Order = "stop" },
		"scale.warm: 2: a reserve runs": func(s *pando.Spec) {
			s.Scale, s.Rollout.Order = pando.Scale{Max: 1, Warm: 2}, pando.StopFirst
		},
		"label \"zone\"": func(s *pando.Spec) { s.Place.Only = "zone" },
		"place.near: contradicts spread": func(s *pando.Spec) {
			s.Place.Spread, s.Place.Near, s.State = "host", "first", nil
		},
		"place.spread: the service has a state": func(s *pando.Spec) { s.Place.Spread = "host" },
		"place.apart: names the service itself": func(s *pando.Spec) { s.Place.Apart = s.Name },
		"place.near: \"last\"":                  func(s *pando.Spec) { s.Place.Near = "last" },
		"rollout.surge: -1":                     func(s *pando.Spec) { s.Rollout.Surge = -1 },
	} {
		s := good()
		spoil(&s)
		if err := Check(s); !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

// A spec may come as JSON from anybody with a token. What it names reaches files of instances and
// requests of probes, and every refusal is the caller's fault.
func TestHostileWordsOfASpecAreRefused(t *testing.T) {
	probe := func(p pando.Probe) func(*pando.Spec) {
		p.Kind = pando.ProbeHTTP
		return func(s *pando.Spec) { s.Health.Ready = p }
	}
	for name, spoil := range map[string]func(*pando.Spec){
		"a line in a hostname": func(s *pando.Spec) { s.Hostname = "a\n192.0.2.1 b" },
		"a line in an address": func(s *pando.Spec) {
			s.ExtraHosts = map[string]string{"a": "fe80::1%eth0\n192.0.2.1 registry.example"}
		},
		"a line in a name": func(s *pando.Spec) {
			s.ExtraHosts = map[string]string{"a\n192.0.2.1 b": "192.0.2.1"}
		},
		"a line in an alias":    func(s *pando.Spec) { s.Aliases = []string{"a\nb"} },
		"a path with a host":    probe(pando.Probe{Path: "@169.254.169.254/"}),
		"a path with a port":    probe(pando.Probe{Path: ":7401/"}),
		"a path with a line":    probe(pando.Probe{Path: "/ HTTP/1.1\r\nX: y"}),
		"a path with a space":   probe(pando.Probe{Path: "/a b"}),
		"a path that is no URL": probe(pando.Probe{Path: "/%zz"}),
		"a header with a line":  probe(pando.Probe{Path: "/", Headers: []string{"Host: a\r\nX: y"}}),
		"a header of the probe": probe(pando.Probe{Path: "/", Headers: []string{"Content-Length: 9"}}),
		"a volume by a path":    func(s *pando.Spec) { s.Volumes = []pando.Volume{{Name: "../v", Path: "/d"}} },
		"a volume of a path": func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "v", Path: "/d", Shared: true, Of: "../../bank/vault"}}
		},
		"a volume of a tenant": func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "v", Path: "/d", Shared: true, Of: "bank/vault"}}
		},
		"a volume of one's own": func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "v", Path: "/d", Of: "vault"}}
		},
		"a metric with spaces": func(s *pando.Spec) { s.Scale.By = "a b" },
	} {
		s := pando.Spec{Name: "web", Command: []string{"x"},
			Ports: []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}}}
		if err := Check(s); err != nil {
			t.Fatal(err)
		}
		spoil(&s)
		if err := Check(s); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckNamesAWrongPolicy(t *testing.T) {
	for want, b := range map[string]pando.Balance{
		`balance.by: "best"`:   {By: "best"},
		`balance.at: "dial"`:   {At: "dial"},
		"balance.weights: -1":  {Weights: pando.Weights{CPU: -1}},
		"balance.weights: NaN": {Weights: pando.Weights{Memory: math.NaN()}},
		"balance.every: 1ms":   {EverySeconds: 0.001},
		"balance.every: 1m0s":  {EverySeconds: 60},
	} {
		s := good()
		s.Balance = b
		if err := Check(s); !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	for _, at := range pando.BalancePlaces {
		s := good()
		s.Balance = pando.Balance{At: at}
		if err := Check(s); err != nil {
			t.Errorf("at %s: %v", at, err)
		}
	}
	atConnect := good()
	atConnect.Balance = pando.Balance{By: pando.ByClient, At: pando.AtConnect}
	if err := Check(atConnect); err == nil || !strings.Contains(err.Error(), "has no address yet") {
		t.Errorf("by client at connect: %v", err)
	}
	for _, by := range pando.BalanceKinds {
		s := good()
		s.Balance = pando.Balance{By: by}.WithDefaults()
		if err := Check(s); err != nil {
			t.Errorf("%s: %v", by, err)
		}
	}
}

// A probe reads as it is printed, and stands for the first port where it names none.
func TestAProbeIsPrintedAsItIsRead(t *testing.T) {
	for text, port := range map[string]uint16{"grpc": 0, "grpc 7000": 7000, "udp": 0, "udp 53": 53} {
		s, err := Parse("x", []byte(minimal+"ports: [80, 53/udp]\nhealth: {live: "+text+"}\n"), "/d")
		if err != nil || len(s) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		if got := s[0].Health.Live; string(got.Kind) != strings.Fields(text)[0] ||
			got.Port != port {
			t.Errorf("%s reads as %+v", text, got)
		}
		if out := string(Format(s[0])); !strings.Contains(out, "live: \""+text+"\"") &&
			!strings.Contains(out, "live: "+text+"\n") {
			t.Errorf("%s is printed as\n%s", text, out)
		}
	}
}
