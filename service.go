package pando

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"time"
)

// Spec is an operator's description of a service. Package spec reads it from YAML, in Compose's
// words where Compose has one. The zero value of an optional field means the default in its
// comment.
type Spec struct {
	Name   ServiceName `json:"name"`
	Tenant Tenant      `json:"tenant,omitempty"` // DefaultTenant
	Kind   ServiceKind `json:"kind,omitempty"`   // instances that equal each other
	Job    Job         `json:"job,omitzero"`     // of KindJob
	VM     VM          `json:"vm,omitzero"`      // of KindVM
	Hooks  Hooks       `json:"hooks,omitzero"`   // for Stateful only
	Image  Image       `json:"image,omitzero"`   // none: the program is the host's
	Bundle Bundle      `json:"bundle,omitzero"`  // none: the program is on every host; not with Image
	// Entrypoint stands before Command. It is the image's by default.
	Entrypoint []string `json:"entrypoint,omitempty"`
	// Command is the argv. argv[0] is looked up in PATH, or is relative to WorkingDir. It is the
	// image's by default.
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment,omitempty"`
	// WorkingDir is absolute after loading. Default: the bundle, the folder of the spec file, or the
	// image's.
	WorkingDir string `json:"working_dir,omitempty"`
	// User is a name, a uid or uid:gid. Default: an unprivileged uid of its own, or the image's.
	User       string `json:"user,omitempty"`
	StopSignal string `json:"stop_signal,omitempty"` // SIGTERM; PowerButton for a VM
	// StopSeconds is the time from the stop signal to SIGKILL: 10.
	StopSeconds float64       `json:"stop_seconds,omitempty"`
	Restart     RestartPolicy `json:"restart,omitempty"` // always
	Ports       []Port        `json:"ports,omitempty"`
	// Exposed adds the ports that the image exposes to Ports.
	Exposed bool `json:"exposed,omitempty"`
	// Endpoints are served in place of a program. The service has one instance for each.
	Endpoints []External           `json:"endpoints,omitempty"`
	Health    Health               `json:"health,omitzero"`
	Scale     Scale                `json:"scale,omitzero"`
	Replicate Replicate            `json:"replicate,omitzero"`
	State     map[string]StateType `json:"state,omitempty"` // path pattern -> merge type
	// StateCopies is the number of hosts that have a commit when it is acknowledged: 1.
	StateCopies int       `json:"state_copies,omitempty"`
	Resources   Resources `json:"resources,omitzero"`
	// Folders are folders and files of the host that the instances see, beside the system's own.
	Folders []Folder `json:"folders,omitempty"`
	// Volumes outlive the instances, and Tmpfs are folders in memory that end with each.
	Volumes []Volume `json:"volumes,omitempty"`
	Tmpfs   []Tmpfs  `json:"tmpfs,omitempty"`
	// ReadOnly keeps an instance from writing to other folders than volumes and its own in memory.
	ReadOnly bool `json:"read_only,omitempty"`
	// Secrets maps names in /run/secrets to files of the host. The store never has their content.
	Secrets map[string]string `json:"secrets,omitempty"`
	// StoredSecrets are secrets of the store, beside them in /run/secrets.
	StoredSecrets []StoredSecret `json:"stored_secrets,omitempty"`
	// Configs are files in /run/configs, by name.
	Configs []Config `json:"configs,omitempty"`
	// Aliases are further names by which programs of the tenant reach the service.
	Aliases []string `json:"aliases,omitempty"`
	// ExtraHosts maps names to addresses, in /etc/hosts of the instances.
	ExtraHosts map[string]string `json:"extra_hosts,omitempty"`
	// Reach is the part of the network that instances may open connections to: internet.
	Reach []Reach `json:"reach,omitempty"`
	// SecurityOpt lifts walls, in Compose's words. Default: none.
	SecurityOpt []string `json:"security_opt,omitempty"`
	// Runtime is RuntimeCrun where a runtime of the host starts the program of an image. "": Pando
	// itself.
	Runtime string `json:"runtime,omitempty"`
	// UsernsMode is UsernsHost where root and the ids of an image are to be the host's. Default: they
	// are those of a user namespace, in a range of ids that the service has for itself.
	UsernsMode string `json:"userns_mode,omitempty"`
	// Init puts an init of Pando before the program of an image, which is PID 1 otherwise. It reaps
	// orphans. Programs of the host always have it.
	Init bool `json:"init,omitempty"`
	// Hostname is the name of the machine that every instance sees. "": instances with a volume of
	// their own have that of their ordinal, and the others their ID.
	Hostname string `json:"hostname,omitempty"`
	// GroupAdd are further groups of the user of an image's program: names or numbers.
	GroupAdd []string `json:"group_add,omitempty"`
	// Ulimits are bounds of each process, such as nofile: 1024:4096. None exceeds the host's own.
	Ulimits map[string]string `json:"ulimits,omitempty"`
	// Sysctls are settings of the kernel that each instance has for itself.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Umask is the mask of new files, in octal digits. "": 0022.
	Umask string `json:"umask,omitempty"`
	// DNS are resolvers of names beyond Pando's own, in place of the host's.
	DNS []string `json:"dns,omitempty"`
	// DNSSearch are domains in place of the host's, after those of the tenant. DNSOptions are options
	// of the resolver in place of the host's.
	DNSSearch  []string `json:"dns_search,omitempty"`
	DNSOptions []string `json:"dns_opt,omitempty"`
	Rollout    Rollout  `json:"rollout,omitzero"`
	Place      Place    `json:"place,omitzero"`
	// Grants name parts of the host that the instances need, beside a program's usual files.
	Grants []Grant `json:"grants,omitempty"`
	// Needs are services of the same tenant, with their conditions for the first start of a revision.
	Needs   map[ServiceName]Need `json:"needs,omitempty"`
	Balance Balance              `json:"balance,omitzero"`
	// DrainSecondsMax is the time for a drain: 600. DrainForever: wait for the last connection.
	DrainSecondsMax float64           `json:"drain_seconds_max,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// Bounds of the words for the kernel.
const (
	GroupAddMax = 32
	SysctlsMax  = 64
	DNSMax      = 8 // elements of each list for the resolver
)

// DrainForever in DrainSecondsMax makes a drain wait for the last connection.
const DrainForever = -1

// drainSeconds is the time for a drain unless the spec sets another.
const drainSeconds = 600

// Files returns the image or the bundle that a host needs before an instance starts there. Without
// either its digest is "".
func (s Spec) Files() Image {
	if s.Bundle.Digest != "" {
		return s.Bundle.Image()
	}
	return s.Image
}

// Hash returns the identity of a spec with defaults. The number of a revision is none after a restore
// from a backup: the next deploy gets a number that another spec had.
func (s Spec) Hash() string {
	text, err := json.Marshal(s)
	if err != nil {
		return "" // specs come from JSON: it cannot be
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// RunsAs reports whether an instance of s runs as one of another spec does. Such specs differ only
// in their number of instances, the beginning of new ones, their rollout, their balance and the
// services they need, or in their aliases. Endpoints that come last in another change no instance of s, and neither do
// labels beside endpoints, which have no template that reads them.
func (s Spec) RunsAs(other Spec) bool {
	if n := len(s.Endpoints); n > 0 {
		other.Endpoints = other.Endpoints[:min(n, len(other.Endpoints))]
		s.Labels = other.Labels
	}
	s.Scale, s.Rollout, s.Balance, s.Needs = other.Scale, other.Rollout, other.Balance, other.Needs
	s.Replicate, s.Aliases = other.Replicate, other.Aliases
	return reflect.DeepEqual(s, other)
}

// Argv returns the words of the program.
func (s Spec) Argv() []string {
	if len(s.Endpoints) > 0 {
		return slices.Clone(idle)
	}
	if s.IsVM() {
		return []string{"qemu-system-x86_64"} // with words of the driver
	}
	return append(slices.Clone(s.Entrypoint), s.Command...)
}

// Key returns the key of the service that the spec describes.
func (s Spec) Key() ServiceKey {
	if s.Tenant == "" {
		return DefaultService(s.Name)
	}
	return ServiceKey{Tenant: s.Tenant, Name: s.Name}
}

// Need is the condition of a service on which another service waits before it starts.
type Need string

const (
	NeedStarted   Need = "started"   // the program of an instance runs, or has completed
	NeedHealthy   Need = "healthy"   // at least min instances are in rotation
	NeedCompleted Need = "completed" // its instances ran to their end, with exit code 0
)

// NeedWords lists every word of Need.
var NeedWords = []Need{NeedStarted, NeedHealthy, NeedCompleted}

// NeedsMax is the largest number of services that one service needs.
const NeedsMax = 32

// RestartPolicy decides whether an instance that exits is replaced.
type RestartPolicy string

const (
	RestartAlways    RestartPolicy = "always"     // replaced below min, with back-off
	RestartOnFailure RestartPolicy = "on-failure" // replaced unless it exited with 0
	RestartNo        RestartPolicy = "no"         // never replaced
)

// Protocol is the protocol of a published port.
type Protocol string

const (
	TCP Protocol = "tcp" // as in Compose
	UDP Protocol = "udp" // as in Compose
)

// Port maps VIP:Published to every instance's Target, as Compose's "80:8080/tcp".
type Port struct {
	Published uint16   `json:"published"`
	Target    uint16   `json:"target"`
	Protocol  Protocol `json:"protocol"`
	// Host is the port of the hosts' own addresses that leads here. 0: none.
	Host uint16 `json:"host,omitempty"`
}

// Health describes the probes that decide whether an instance may take traffic, and still can.
type Health struct {
	// Startup is asked first, until it succeeds once. Ready and Live wait for it.
	Startup Startup `json:"startup,omitzero"`
	// Ready is explicit by default (POST /v1/self/ready or sd_notify).
	Ready Probe `json:"ready,omitzero"`
	Live  Probe `json:"live,omitzero"` // none: only its exit counts
	// ReadySecondsMax is the time until it is ready: 30. It begins when Startup has succeeded. A
	// slower start has failed.
	ReadySecondsMax float64 `json:"ready_seconds_max,omitempty"`
	IntervalSeconds float64 `json:"interval_seconds,omitempty"` // 1: between two live probes
	TimeoutSeconds  float64 `json:"timeout_seconds,omitempty"`  // 1: for one probe
	// Fall is the number of failed live probes in a row until the instance is unhealthy: 3.
	Fall int `json:"fall,omitempty"`
}

// Startup is the probe of a program that starts slowly, with numbers of its own.
type Startup struct {
	Probe Probe `json:"probe,omitzero"` // none: Ready is asked at once
	// IntervalSeconds is the longest time between two probes: 0.05. The first ones follow sooner.
	IntervalSeconds float64 `json:"interval_seconds,omitempty"`
	TimeoutSeconds  float64 `json:"timeout_seconds,omitempty"` // 1: for one probe
	SecondsMax      float64 `json:"seconds_max,omitempty"`     // 300: a slower start has failed
}

// Probes returns the probes with their keys in a spec, in the order in which they are asked.
func (h Health) Probes() []KeyedProbe {
	return []KeyedProbe{
		{"health.startup.probe", h.Startup.Probe}, {"health.ready", h.Ready}, {"health.live", h.Live},
	}
}

// KeyedProbe is a probe with its key in a spec.
type KeyedProbe struct {
	Key string
	Probe
}

// ProbeKind is the method of a probe.
type ProbeKind string

const (
	ProbeExplicit ProbeKind = ""     // the application reports it
	ProbeTCP      ProbeKind = "tcp"  // a connection is accepted
	ProbeHTTP     ProbeKind = "http" // GET answers 200..399
	ProbeGRPC     ProbeKind = "grpc" // grpc.health.v1 answers SERVING for the whole server
	ProbeExec     ProbeKind = "exec" // a command inside the sandbox exits with 0
	ProbeUDP      ProbeKind = "udp"  // a datagram is answered, or at least not refused
	// ProbePing is an answered ICMP echo of the machine of an external endpoint. The kernel answers
	// for any other instance, so it proves nothing there.
	ProbePing ProbeKind = "ping"
	// ProbeStarted succeeds as soon as the program runs, for a program that reports nothing.
	ProbeStarted ProbeKind = "started"
	// ProbeReported is the report of the application, as the startup probe.
	ProbeReported ProbeKind = "reported"
)

// Probe is one check: "tcp 7000", "http GET /ok", "grpc 7000", "udp 53", "ping" or "exec CMD".
// "http GET :7000/ok" names a port. "https GET /ok -H 'Host: example.org'" is by TLS, with a header.
type Probe struct {
	Kind    ProbeKind `json:"kind,omitempty"`
	Port    uint16    `json:"port,omitempty"`    // tcp, http, grpc, udp; 0: the first target port
	Path    string    `json:"path,omitempty"`    // http; with a query
	TLS     bool      `json:"tls,omitempty"`     // http: by TLS, with any certificate
	Headers []string  `json:"headers,omitempty"` // http: "Name: value"
	Command []string  `json:"command,omitempty"` // exec
}

// Dials returns the protocol by which the probe connects to a port of the instance. "": it needs no
// port.
func (p Probe) Dials() Protocol {
	switch p.Kind {
	case ProbeTCP, ProbeHTTP, ProbeGRPC:
		return TCP
	case ProbeUDP:
		return UDP
	}
	return ""
}

// ProbePort returns the port for a probe that names none: the first of the probe's protocol, or
// else the first port. The zero port: the service publishes none.
func (s Spec) ProbePort(p Probe) (first Port) {
	for n, port := range s.Ports {
		if port.Protocol == p.Dials() {
			return port
		}
		if n == 0 {
			first = port
		}
	}
	return first
}

// Scale bounds the number of instances and names the scaler.
type Scale struct {
	Min           int     `json:"min,omitempty"`             // 1
	Zero          bool    `json:"zero,omitempty"`            // Min is 0, and not the default
	Max           int     `json:"max,omitempty"`             // default: Min
	Warm          int     `json:"warm,omitempty"`            // reserve: fully started, then stopped
	RatePerSecond float64 `json:"rate_per_second,omitempty"` // 0: no limit on new instances per second
	By            Metric  `json:"by,omitempty"`              // "": the application or an operator
	Target        float64 `json:"target,omitempty"`          // of By, per instance
	// Up and Down are the thresholds of ByScores (τ of HAVEN Fig. 6 and 7).
	Up   float64 `json:"up,omitempty"`
	Down float64 `json:"down,omitempty"`
	// QuietSeconds is the time below target before an instance leaves: 30.
	QuietSeconds float64 `json:"quiet_seconds,omitempty"`
	// AheadSeconds is the time for which the load of By is forecast. A ramp then starts the instances
	// that it needs by then. 0: none.
	AheadSeconds float64 `json:"ahead_seconds,omitempty"`
	// IdleSeconds is the time without packets and flows after which the last instance leaves. The
	// next packet starts one. It needs Zero. 0: traffic neither stops nor starts the last instance.
	IdleSeconds float64 `json:"idle_seconds,omitempty"`
}

// FromZero reports whether traffic starts the first instance.
func (s Scale) FromZero() bool { return s.Zero && s.IdleSeconds > 0 }

// Metric is the measurement that the built-in scaler reads. Any word but those below is a number
// of the application (PUT /v1/self/metrics).
type Metric string

const (
	ByNothing     Metric = ""                       // the application or an operator scales
	ByConnections Metric = "connections_per_second" // new flows
	ByPackets     Metric = "packets_per_second"     // packets of all flows
	ByScores      Metric = "score"                  // of the instances, between Up and Down
)

// Counted reports whether the metric is a counter of the steering.
func (m Metric) Counted() bool { return m == ByConnections || m == ByPackets }

// Custom reports whether the metric is a number of the application.
func (m Metric) Custom() bool { return m != ByNothing && m != ByScores && !m.Counted() }

var metricName = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,62}$`)

// Check returns nil if the scaler can read the metric, else the reason.
func (m Metric) Check() error {
	switch {
	case !m.Custom():
		return nil
	case m == "cpu" || m == "memory":
		return fmt.Errorf("%w: %s is part of the score: use by: score", ErrInvalid, m)
	case !metricName.MatchString(string(m)):
		return fmt.Errorf("%w: %q: want connections/s, packets/s, score or the name of a number of the "+
			"application, such as queue_depth", ErrInvalid, string(m))
	}
	return nil
}

// StateType chooses the merge of two versions of a path. Package state has the merges.
type StateType string

const (
	StateCounter StateType = "counter"          // the sum of both changes
	StateSet     StateType = "set"              // members added and removed on both sides
	StateLog     StateType = "append-log"       // the lines of both sides
	StateLast    StateType = "last-writer-wins" // the newer value
	StateOpaque  StateType = "opaque"           // a conflict keeps both versions
)

// PIDsDefault limits processes and threads of an instance if its spec sets no limit. Servers need
// fewer. A fork bomb cannot take a machine's ids (32,768 on a small one) from its neighbours.
const PIDsDefault = 2048

// Resources limits one instance. Zero CPUs or MemoryBytes is no limit. Zero PIDs is PIDsDefault, if
// the machine can count them.
type Resources struct {
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	// CPUSet are the processors that an instance may use, such as 0-3,7. "": all of the host.
	CPUSet string `json:"cpuset,omitempty"`
}

// SeccompUnconfined is the option of Compose that lifts the filter of system calls.
const SeccompUnconfined = "seccomp=unconfined"

// UsernsHost is the word of Compose for the users of the host.
const UsernsHost = "host"

// PowerButton is the stop signal that presses the power button of a virtual machine. Another signal
// ends its emulator, and so the machine at once.
const PowerButton = "SIGPWR"

// RuntimeCrun is crun of the host, for programs of images.
const RuntimeCrun = "crun"

// Reach is a part of the network that an instance may open connections to. The published ports of
// its own tenant, other instances of its own service and DNS need no word.
type Reach string

const (
	ReachTenant   Reach = "tenant"   // the services of its own tenant, which need no word
	ReachInternet Reach = "internet" // everything beyond the hosts, but for metadata
	ReachTenants  Reach = "tenants"  // the services of other tenants
	ReachHost     Reach = "host"     // the hosts of the cluster, at every port
	ReachMetadata Reach = "metadata" // the metadata service of a cloud
)

// Reachables lists every word of Reach.
var Reachables = []Reach{ReachInternet, ReachTenant, ReachTenants, ReachHost, ReachMetadata}

// Folder is a folder or file of the host that an instance sees at the same path.
type Folder struct {
	Path  string `json:"path"`
	At    string `json:"at,omitempty"`    // in the instance; "": at Path
	Write bool   `json:"write,omitempty"` // as far as its modes allow the instance's user
}

// Reaches reports whether instances may open connections to r. A spec without `reach` reaches the
// Internet.
func (s Spec) Reaches(r Reach) bool {
	if len(s.Reach) == 0 {
		return r == ReachInternet || r == ReachTenant
	}
	return r == ReachTenant || slices.Contains(s.Reach, r)
}

// Unconfined reports whether the spec lifts the filter of system calls.
func (s Spec) Unconfined() bool { return slices.Contains(s.SecurityOpt, SeccompUnconfined) }

// SpreadHost is the word of Place.Spread that counts each host for itself.
const SpreadHost = "host"

// NearFirst is the word of Place.Near for the default: all instances run on the host of the first.
const NearFirst = "first"

// Place describes the hosts on which the instances of a service run. The zero value means
// NearFirst, on any host.
type Place struct {
	// Spread puts each instance where the fewest of the service run: SpreadHost, or the name of a
	// label. The values of the label then come before the hosts. "": all instances run on one host.
	Spread string `json:"spread,omitempty"`
	Near   string `json:"near,omitempty"` // NearFirst; not beside Spread
	// Only is a label that the hosts must have, as NAME=VALUE. "": none.
	Only string `json:"only,omitempty"`
	// Apart is a service of the same tenant. No instance starts on a host of that service.
	Apart ServiceName `json:"apart,omitempty"`
}

// Single reports whether the service has one writer: two of its instances must never run at the
// same time on one host.
func (s Spec) Single() bool { return s.Scale.Max == 1 && s.Rollout.Order == StopFirst }

// Seconds turns a field of a spec into a duration.
func Seconds(s float64) time.Duration {
	switch d := s * float64(time.Second); {
	case math.IsNaN(d):
		return 0
	case d >= math.MaxInt64:
		return math.MaxInt64 // a conversion would make a negative one
	case d <= math.MinInt64:
		return math.MinInt64
	default:
		return time.Duration(d)
	}
}

// ServicePhase is the state of a service as a whole.
type ServicePhase string

const (
	ServiceDeploying ServicePhase = "deploying" // its current revision is still below min instances
	ServiceServing   ServicePhase = "serving"   // at least min instances are in rotation
	ServiceRolling   ServicePhase = "rolling"   // a newer revision is taking over
	ServiceDegraded  ServicePhase = "degraded"  // fewer than min in rotation; Reason has the cause
	ServiceFailing   ServicePhase = "failing"   // likewise, and its instances fail without end
	ServiceCompleted ServicePhase = "completed" // its instances ended with 0, and none is replaced
	ServiceRemoving  ServicePhase = "removing"  // its instances drain and merge, then it is deleted
	ServiceRunning   ServicePhase = "running"   // a run of the job is in progress
	ServiceScheduled ServicePhase = "scheduled" // the job waits for its next run
	ServiceFailed    ServicePhase = "failed"    // the newest run of the job failed
)

// Service is the record of one service: its target and its progress.
type Service struct {
	ServiceKey
	VIP4    netip.Addr   `json:"vip4"`
	VIP6    netip.Addr   `json:"vip6"`
	Current int          `json:"current"` // the revision that serves; 0 before the first does
	Target  int          `json:"target"`  // the newest wanted revision; != Current during a rollout
	Latest  int          `json:"latest"`  // the highest revision number so far
	Phase   ServicePhase `json:"phase"`
	Home    HostName     `json:"home,omitempty"` // the one host of all its instances
	Reason  string       `json:"reason,omitempty"`
	Pin     *Pin         `json:"pin,omitempty"`
	// Rolling is the number of instances that a rollout must end with. A rollout that overtakes
	// another one takes it over. After a rollback it is the number to come back to. 0: neither.
	Rolling int `json:"rolling,omitempty"`
	// Healed is the last commit that created an instance which succeeded after failures.
	Healed   StoreRevision `json:"healed,omitempty"`
	Purge    bool          `json:"purge,omitempty"` // removal deletes its state
	Removing bool          `json:"removing,omitempty"`
	// EndNow is set if an operator wants the removal without a wait for connections.
	EndNow bool      `json:"end_now,omitempty"`
	Asked  time.Time `json:"asked"`           // when the newest spec arrived
	Trial  *Trial    `json:"trial,omitempty"` // of the rollout in progress, if there is one
	Renew  *Renewal  `json:"renew,omitempty"` // the restart in progress; nil: none
	Shift  *Shift    `json:"shift,omitempty"` // the move to a less loaded host in progress; nil: none
	Book   *RunBook  `json:"book,omitempty"`  // its runs; nil: none so far
	Roll   *Roll     `json:"roll,omitempty"`  // of a stateful service: its ordinals
	// Sizes are those of its volumes, also of those that its revisions no longer have.
	Sizes []VolumeSize `json:"sizes,omitempty"`
}

// RenewalMax bounds the instances that a restart names.
const RenewalMax = 64

// Renewal is a restart in progress: the instances that leave once others have taken their places.
// The revision of the service stays.
type Renewal struct {
	// Before is the store revision of the newest instance that leaves. Later ones stay.
	Before StoreRevision `json:"before"`
	Only   []InstanceID  `json:"only,omitempty"` // none: all instances up to Before
}

// Shift is a move of instances of a service from a loaded host to another one: others start there
// before these leave.
type Shift struct {
	From HostName `json:"from"`
	To   HostName `json:"to"`
	// Instances are those that leave. None: all of them, with the home of the service.
	Instances []InstanceID `json:"instances,omitempty"`
}

// Moves reports whether an instance leaves its host by a shift, which may be nil.
func (s *Shift) Moves(i Instance) bool {
	return s != nil && i.Host == s.From &&
		(len(s.Instances) == 0 || slices.Contains(s.Instances, i.ID))
}

// ShiftsMax bounds the services that a rebalance moves at the same time.
const ShiftsMax = 4

// RebalanceAsk is the wish of an operator to make the loads of hosts even.
type RebalanceAsk struct {
	Service ServiceKey `json:"service,omitzero"` // zero: all services
	DryRun  bool       `json:"dry_run,omitempty"`
}

// RebalanceMove is one step of a rebalance.
type RebalanceMove struct {
	Service   ServiceKey `json:"service"`
	Instances int        `json:"instances"`
	From      HostName   `json:"from"`
	To        HostName   `json:"to"`
}

// Rebalance is the progress of a rebalance, or its plan.
type Rebalance struct {
	Moving []RebalanceMove `json:"moving"` // in progress
	Next   []RebalanceMove `json:"next"`   // of a dry run: the steps that would follow, at most 100
}

// RestartAsk is the wish of an operator to replace the instances of a service.
type RestartAsk struct {
	Instance InstanceID `json:"instance,omitempty"` // "": all instances
	Cancel   bool       `json:"cancel,omitempty"`   // end the restart in progress
}

// Pin is a number of instances that an operator fixed for a while. Automatic scaling pauses until
// it ends.
type Pin struct {
	Instances int       `json:"instances"`
	Until     time.Time `json:"until,omitzero"` // zero: until Unpin
	By        Asker     `json:"by"`
	Before    int       `json:"before"` // instances before the pin: those it added leave when it ends
}

// Holds reports whether the pin (which may be nil) is in force.
func (p *Pin) Holds(now time.Time) bool {
	return p != nil && (p.Until.IsZero() || now.Before(p.Until))
}

// RevisionState is the progress of one revision of a spec.
type RevisionState string

const (
	RevisionRolling RevisionState = "rolling" // its first instances are on trial
	RevisionCurrent RevisionState = "current" // it serves
	RevisionRetired RevisionState = "retired" // replaced by a newer one
	RevisionFailed  RevisionState = "failed"  // rolled back; Reason has the cause
	// RevisionReplaced never served: a newer deploy came before.
	RevisionReplaced RevisionState = "replaced"
)

// Revision is one version of a service's spec. Its number grows by one with every deploy that
// changes the spec.
type Revision struct {
	Service ServiceKey    `json:"service"`
	Number  int           `json:"number"`
	Spec    Spec          `json:"spec"` // with defaults
	State   RevisionState `json:"state"`
	Reason  string        `json:"reason,omitempty"`
	At      time.Time     `json:"at"`
	By      Asker         `json:"by"`
	// Repeats is the older revision with this spec, to which an operator went back. 0: a new spec.
	Repeats int `json:"repeats,omitempty"`
}

// StateHead is the main head of a service's state: the commit into which every branch is merged. It
// is the only part of state in the store. Objects and branches are on the hosts.
type StateHead struct {
	Service ServiceKey `json:"service"`
	Commit  ObjectID   `json:"commit"`
	Host    HostName   `json:"host"` // the host that has every object of this commit
	At      time.Time  `json:"at"`
	Merges  int64      `json:"merges"` // since birth
}
