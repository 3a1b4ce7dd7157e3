package pando

import "time"

// Spec is what an operator asks of a service. Package spec reads it from YAML; its words are Compose's wherever
// Compose has the word. The zero value of an optional field means the default that its comment names.
type Spec struct {
	Name            ServiceName          `json:"name"`
	Tenant          Tenant               `json:"tenant,omitempty"`       // DefaultTenant
	Command         []string             `json:"command"`                // argv; argv[0] is looked up in PATH, or relative to WorkingDir
	Environment     map[string]string    `json:"environment,omitempty"`  //
	WorkingDir      string               `json:"working_dir,omitempty"`  // absolute after loading; the folder of the spec file
	User            string               `json:"user,omitempty"`         // name, uid or uid:gid; by default an unprivileged uid of its own
	StopSignal      string               `json:"stop_signal,omitempty"`  // SIGTERM
	StopSeconds     float64              `json:"stop_seconds,omitempty"` // 10: from the stop signal to SIGKILL
	Restart         RestartPolicy        `json:"restart,omitempty"`      // always
	Ports           []Port               `json:"ports,omitempty"`
	Health          Health               `json:"health,omitzero"`
	Scale           Scale                `json:"scale,omitzero"`
	State           map[string]StateType `json:"state,omitempty"` // path pattern -> merge type
	Resources       Resources            `json:"resources,omitzero"`
	Rollout         Rollout              `json:"rollout,omitzero"`
	DrainSecondsMax float64              `json:"drain_seconds_max,omitempty"` // 0: wait for the last connection
	Labels          map[string]string    `json:"labels,omitempty"`
}

// Key of the service that the spec describes.
func (s Spec) Key() ServiceKey {
	if s.Tenant == "" {
		return DefaultService(s.Name)
	}
	return ServiceKey{Tenant: s.Tenant, Name: s.Name}
}

// RestartPolicy says what follows the exit of an instance.
type RestartPolicy string

const (
	RestartAlways    RestartPolicy = "always"     // replaced below min, with back-off
	RestartOnFailure RestartPolicy = "on-failure" // replaced unless it exited with 0
	RestartNo        RestartPolicy = "no"         // never replaced
)

// Protocol of a published port.
type Protocol string

const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Port maps VIP:Published to every instance's Target, as Compose's "80:8080/tcp".
type Port struct {
	Published uint16   `json:"published"`
	Target    uint16   `json:"target"`
	Protocol  Protocol `json:"protocol"`
}

// Health says how an instance shows that it may take traffic and that it still can.
type Health struct {
	Ready           Probe   `json:"ready,omitzero"`              // explicit (POST /v1/self/ready or sd_notify) unless given
	Live            Probe   `json:"live,omitzero"`               // none: only its exit tells
	ReadySecondsMax float64 `json:"ready_seconds_max,omitempty"` // 30: never ready by then is a failed start
	IntervalSeconds float64 `json:"interval_seconds,omitempty"`  // 1: between two live probes
	TimeoutSeconds  float64 `json:"timeout_seconds,omitempty"`   // 1: of one probe
	Fall            int     `json:"fall,omitempty"`              // 3: failed live probes in a row before it is unhealthy
}

// ProbeKind is how a probe asks.
type ProbeKind string

const (
	ProbeExplicit ProbeKind = ""     // the application says so itself
	ProbeTCP      ProbeKind = "tcp"  // a connection is accepted
	ProbeHTTP     ProbeKind = "http" // GET answers 200..399
	ProbeExec     ProbeKind = "exec" // a command inside the sandbox exits with 0
)

// Probe is one way of asking: "tcp 7000", "http GET /ok" (with an optional port, "http GET :7000/ok") or "exec CMD".
type Probe struct {
	Kind    ProbeKind `json:"kind,omitempty"`
	Port    uint16    `json:"port,omitempty"`    // tcp, http; 0: the first target port
	Path    string    `json:"path,omitempty"`    // http
	Command []string  `json:"command,omitempty"` // exec
}

// Scale bounds how many instances there are, and says who asks for them.
type Scale struct {
	Min           int     `json:"min,omitempty"`             // 1
	Max           int     `json:"max,omitempty"`             // Min, when not given
	Warm          int     `json:"warm,omitempty"`            // stopped, fully started instances kept in reserve
	RatePerSecond float64 `json:"rate_per_second,omitempty"` // 0: no limit on new instances per second
	By            Metric  `json:"by,omitempty"`              // "": the application itself, or by hand
	Target        float64 `json:"target,omitempty"`          // of By, per instance
	QuietSeconds  float64 `json:"quiet_seconds,omitempty"`   // 30: below target this long before one leaves
}

// Metric is what the built-in scaler reads from the steering counters.
type Metric string

const (
	ByNothing     Metric = ""
	ByConnections Metric = "connections_per_second"
	ByPackets     Metric = "packets_per_second"
)

// StateType is how two versions of one path become one (package state has the merges).
type StateType string

const (
	StateCounter StateType = "counter"
	StateSet     StateType = "set"
	StateLog     StateType = "append-log"
	StateLast    StateType = "last-writer-wins"
	StateOpaque  StateType = "opaque"
)

// PIDsDefault bounds an instance whose spec does not say how many processes and threads it may have: more than servers
// need, and too few for a fork bomb to take a machine's numbers (32,768 on a small one) from its neighbours.
const PIDsDefault = 2048

// Resources limits one instance. Zero is no limit; of PIDs it is PIDsDefault, where the machine can count them.
type Resources struct {
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
}

// RolloutOrder says whether two revisions of a service may run at the same time.
type RolloutOrder string

const (
	StartFirst RolloutOrder = "start-first" // a new instance serves before an old one leaves
	StopFirst  RolloutOrder = "stop-first"  // an old instance has ended before a new one starts
)

// Rollout says how a new revision takes over.
type Rollout struct {
	Order          RolloutOrder `json:"order,omitempty"`           // start-first; stop-first where scale.max is given as 1
	Surge          int          `json:"surge,omitempty"`           // 1: instances beyond the wanted number; start-first only
	HealthySeconds float64      `json:"healthy_seconds,omitempty"` // 1: in rotation this long before the next step
}

// Single says whether two instances of the service must never run at the same time on one host: it
// has one writer.
func (s Spec) Single() bool { return s.Scale.Max == 1 && s.Rollout.Order == StopFirst }

// WithDefaults returns the spec with every default filled in, so that no reader has to know them.
func (s Spec) WithDefaults() Spec {
	orStr := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	orNum := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	orInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if s.Tenant == "" {
		s.Tenant = DefaultTenant
	}
	orStr(&s.StopSignal, "SIGTERM")
	orNum(&s.StopSeconds, 10)
	if s.Restart == "" {
		s.Restart = RestartAlways
	}
	orNum(&s.Health.ReadySecondsMax, 30)
	orNum(&s.Health.IntervalSeconds, 1)
	orNum(&s.Health.TimeoutSeconds, 1)
	orInt(&s.Health.Fall, 3)
	if s.Rollout.Order == "" {
		s.Rollout.Order = StartFirst
		if s.Scale.Max == 1 { // given, not by default: the two lines below would make it so for nearly every spec
			s.Rollout.Order = StopFirst
		}
	}
	orInt(&s.Scale.Min, 1)
	if s.Scale.Max < s.Scale.Min {
		s.Scale.Max = s.Scale.Min
	}
	orNum(&s.Scale.QuietSeconds, 30)
	orInt(&s.Rollout.Surge, 1)
	orNum(&s.Rollout.HealthySeconds, 1)
	return s
}

// Seconds turns a field of a spec into a duration.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
