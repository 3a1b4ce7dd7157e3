package pando

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Phase is one step in the life of an instance.
//
//	placed ──► starting ──► ready ──► in rotation ──► draining ──► drained ──► merged ──► dead
//	              │ ▲          │            │             │            │
//	              ▼ │          └────────────┴──────┬──────┴────────────┘
//	             warm                              ▼
//	              └──────────────────────────►  failed ─────────────────────► merged (salvage)
//
// Control writes placed and draining. A warm start is control writing placed over warm. The agent
// of the instance's host writes the others. It also writes draining if the instance fails its live
// probes. A dead instance has no record: its end is in its intent and in the decisions.
type Phase string

const (
	PhasePlaced     Phase = "placed"      // control chose its host
	PhaseStarting   Phase = "starting"    // its program runs and is not ready
	PhaseWarm       Phase = "warm"        // fully started, then stopped: in reserve, no capacity
	PhaseReady      Phase = "ready"       // it may take traffic
	PhaseInRotation Phase = "in rotation" // steering sends it new flows
	PhaseDraining   Phase = "draining"    // takes no new flows
	PhaseDrained    Phase = "drained"     // its last flow ended
	PhaseFailed     Phase = "failed"      // exited, was killed or never became ready
	PhaseMerged     Phase = "merged"      // its state is in main; it may be removed
	PhaseDead       Phase = "dead"        // gone, without a record
)

var phaseNext = map[Phase][]Phase{
	PhasePlaced:     {PhaseStarting, PhaseDraining, PhaseFailed},
	PhaseStarting:   {PhaseWarm, PhaseReady, PhaseDraining, PhaseFailed},
	PhaseWarm:       {PhasePlaced, PhaseDraining, PhaseFailed},
	PhaseReady:      {PhaseInRotation, PhaseDraining, PhaseFailed},
	PhaseInRotation: {PhaseReady, PhaseDraining, PhaseFailed},
	PhaseDraining:   {PhaseDrained, PhaseFailed},
	PhaseDrained:    {PhaseMerged, PhaseFailed},
	PhaseFailed:     {PhaseMerged},
	PhaseMerged:     {PhaseDead},
}

// May reports whether an instance in phase p may move to phase q.
func (p Phase) May(q Phase) bool { return slices.Contains(phaseNext[p], q) }

// Known reports whether this build has the phase. A newer build may write others.
func (p Phase) Known() bool { return len(phaseNext[p]) > 0 || p == PhaseDead }

// Capacity reports whether the instance counts against max: it serves or soon will. A reserve does
// not.
func (i Instance) Capacity() bool {
	return !i.Warm && slices.Contains([]Phase{PhasePlaced, PhaseStarting, PhaseReady, PhaseInRotation},
		i.Phase)
}

// Become returns the instance in phase q since at, with the reason. An illegal step is a
// programming error.
func (i Instance) Become(q Phase, at time.Time, reason string) Instance {
	if !i.Phase.May(q) {
		panic("instance " + string(i.ID) + ": " + string(i.Phase) + " cannot become " + string(q))
	}
	i.Phase, i.Since, i.Reason, i.Waits = q, at, reason, ""
	return i
}

// TakesFlows reports whether steering may send new flows to an instance in this phase.
func (p Phase) TakesFlows() bool { return p == PhaseReady || p == PhaseInRotation }

// KeepsFlows reports whether an instance in this phase keeps its established flows.
func (p Phase) KeepsFlows() bool {
	return p.TakesFlows() || p == PhaseDraining || p == PhaseDrained
}

// Leaving reports whether the instance is about to end.
func (p Phase) Leaving() bool {
	return p == PhaseDraining || p == PhaseDrained || p == PhaseMerged || p == PhaseDead
}

// Role records whether an instance was the first of its service.
type Role string

const (
	RoleFirst   Role = "first"   // started by Pando
	RoleReplica Role = "replica" // started by a request
)

// Instance is the record of one running copy of a service.
type Instance struct {
	ID       InstanceID `json:"id"`
	Service  ServiceKey `json:"service"`
	Host     HostName   `json:"host"`
	Revision int        `json:"revision"`
	// SpecHash is that of the revision's spec (Spec.Hash). After a restore from a backup the number
	// may mean another spec. "": placed by a former build.
	SpecHash string `json:"spec_hash,omitempty"`
	Weight   int    `json:"weight"` // share of new flows; 100 is one whole share
	Role     Role   `json:"role"`
	Warm     bool   `json:"warm,omitempty"` // a reserve until it is claimed
	// Ordinal names the instance's own volumes, from 1 on. 0: its service has none.
	Ordinal int `json:"ordinal,omitempty"`
	// Start is control's order to an instance of a stateful service, and Position the answer of its
	// host to StartRecover (see ParsePosition).
	Start    StartMode `json:"start,omitempty"`
	Position string    `json:"position,omitempty"`
	// Term is the term in which the ordinal leads. 0: it follows.
	Term int64    `json:"term,omitempty"`
	Run  *RunPart `json:"run,omitempty"` // nil: it serves; else it stays starting
	// Replaces is the instance that leaves once this one is in rotation: it evens the spread.
	Replaces InstanceID `json:"replaces,omitempty"`
	// Unwell is why control should replace it, by its host: it does not answer. "": it answers.
	Unwell string `json:"unwell,omitempty"`
	// Hears is what its host saw of its listeners.
	Hears  Hearing `json:"hears,omitempty"`
	Phase  Phase   `json:"phase"`
	Reason string  `json:"reason"` // of the last change
	// Waits is what a drain waits for: the connections and the clients. "": nothing, or not yet known.
	Waits string `json:"waits,omitempty"`
	// Ordered is when its host learned of the drain, by that host's clock. The host notes it with the
	// first report, so that an agent that starts again continues drain_max. Zero: not yet.
	Ordered time.Time `json:"ordered,omitzero"`
	// EndNow is set if an operator ended the drain: its connections are not waited for.
	EndNow bool     `json:"end_now,omitempty"`
	Intent IntentID `json:"intent"`         // the intent that started it
	Halt   IntentID `json:"halt,omitempty"` // the intent that ends it
	From   string   `json:"from,omitempty"` // the snapshot that it continues
	// Move is the move in progress to another host. Nil: it stays.
	Move *MoveMark `json:"move,omitempty"`
	// Bound is the host that control moves it to, from before that host prepares its files.
	Bound HostName   `json:"bound,omitempty"`
	IP4   netip.Addr `json:"ip4,omitzero"`
	IP6   netip.Addr `json:"ip6,omitzero"`
	// Walk is set if the instance did not ask for its own drain. Its agent stops it once it is
	// drained.
	Walk  bool      `json:"walk,omitempty"`
	Since time.Time `json:"since"` // start of the phase
	Born  time.Time `json:"born"`
	Exit  *Exit     `json:"exit,omitempty"`
}

// Check returns nil if this build can follow the record, else the reason. A dead instance has no
// record.
func (i Instance) Check() error {
	if !i.Phase.Known() || i.Phase == PhaseDead {
		return fmt.Errorf("%w: phase %q of instance %s is not one that this build knows",
			ErrInvalid, i.Phase, i.ID)
	}
	return nil
}

// RunsSpec reports whether an instance was placed with a spec, as far as its record says.
func (i Instance) RunsSpec(s Spec) bool { return i.SpecHash == "" || i.SpecHash == s.Hash() }

// Exit is the end of an instance's program.
type Exit struct {
	Code      int      `json:"code"`
	Signal    string   `json:"signal,omitempty"`
	OOMKilled bool     `json:"oom_killed,omitempty"`
	LastLines []string `json:"last_lines,omitempty"` // of its log, at most 20
}

// Sandboxes starts the sandbox of an instance. driver/sandbox/process implements it with namespaces and a
// shim per instance, driver/sim in virtual time.
type Sandboxes interface {
	// Start makes a sandbox and starts the program in it. It returns once the program is running,
	// before it is ready.
	Start(ctx context.Context, s SandboxSpec) (Sandbox, error)
	// Prepare does every step of a start that can be undone without a trace. No instruction of the
	// program has run when it returns. The caller then calls Start, which only releases the
	// program, or Discard, which undoes the preparation. Discard ignores an instance that was not
	// prepared. Attach never returns a sandbox that was only prepared.
	Prepare(ctx context.Context, s SandboxSpec) error
	// Discard undoes Prepare.
	Discard(i InstanceID)
	// Attach returns every sandbox that outlived a former agent of this host. One that does not
	// answer in time is among them, with the event SandboxSilent.
	Attach(ctx context.Context) ([]Sandbox, error)
}

// SandboxSpec describes the sandbox that an agent wants.
type SandboxSpec struct {
	Instance Instance
	Spec     Spec       // with defaults
	VIP4     netip.Addr // every instance answers for it (direct server return)
	VIP6     netip.Addr
	// Secrets are the contents of the secrets of the store in the spec.
	Secrets map[string][]byte
	Configs []ConfigFile // of the spec, rendered
	// From is the folder of the snapshot that the program continues, as Snapshots.Open returns it.
	From string
	// Arrives is the program that Travels.Leave of another host writes, for the move of
	// Instance.Move. The sandbox then starts stopped, as if it had left.
	Arrives io.Reader
}

// Sandbox is one running instance as its host sees it. Its methods may be called from any
// goroutine.
type Sandbox interface {
	// Instance returns the name of the instance.
	Instance() InstanceID
	// Service returns the service of the instance.
	Service() ServiceKey
	// Link returns the host's path to the instance.
	Link() Link
	// Listener accepts connections to the instance's own API socket. It closes and counts a
	// connection from a process outside the sandbox, and never returns it.
	Listener() net.Listener
	// Events sends the events of the program. The events that a former agent received come first.
	// The channel closes after SandboxExited.
	Events() <-chan SandboxEvent
	// Notify makes SandboxNotified happen, for a program that reported in another way that it is
	// ready. It happens once. The sandbox stores it.
	Notify(ctx context.Context) error
	// Pause stops every process of the sandbox.
	Pause(ctx context.Context) error
	// Resume continues every process of the sandbox.
	Resume(ctx context.Context) error
	// Stop sends the spec's stop signal, and SIGKILL after the spec's stop_seconds or when ctx
	// ends. It returns once no process of the sandbox is left.
	Stop(ctx context.Context) error
	// Remove ends every process and gives back namespaces, cgroups, addresses and mounts. It
	// returns once the processes are gone. The rest ends in the background.
	Remove(ctx context.Context) error
	// Exec runs a command inside. It returns the exit code and the first 4 KiB of the output.
	Exec(ctx context.Context, command []string) (code int, output []byte, err error)
	// Session runs a command inside with the user, limits and walls of the program. The connection
	// carries the frames of api/session. The end of the connection ends the command.
	Session(ctx context.Context, s SessionSpec) (io.ReadWriteCloser, error)
	Freezes
	Travels
	// Renew replaces the secrets of the store with newer contents, and returns the names of those
	// that differed. The program then gets the signals of those names, each once.
	Renew(
		ctx context.Context, secrets map[string][]byte, signals map[string]string,
	) (changed []string, err error)
	// Reconfigure replaces a config if its content differs, and signals the program. A check of the
	// change decides first. ErrRefused: the check failed, and the former content stays.
	Reconfigure(ctx context.Context, c ConfigChange) (changed bool, err error)
	// Flows counts the instance's established TCP connections and connected UDP sockets that have a
	// VIP as their local address.
	Flows(ctx context.Context) (int, error)
	// Clients returns the connections that Flows counts, those that are silent for the longest first.
	Clients(ctx context.Context) ([]Client, error)
	// ProbeClients makes the kernel probe the silent clients of the instance's connections. It ends
	// the connection of one that answers no probe for minutes, as if the program had asked for that.
	ProbeClients(ctx context.Context) error
	// Usage returns the sandbox's resource use since its start.
	Usage(ctx context.Context) (Usage, error)
	// Strain returns the part of its use that a meter reads ten times a second. It is cheap.
	Strain(ctx context.Context) (Strain, error)
	// Hears returns the address families by which the program accepts at ports.
	Hears(ports []Port) (Hearing, error)
	// LastLines returns the end of the instance's log as evidence. It cuts long lines and replaces
	// terminal control characters.
	LastLines(n int) []string
}

// Client is the other end of one connection of an instance, as its socket shows it.
type Client struct {
	Address  netip.AddrPort
	Protocol Protocol
	Idle     time.Duration // since the last data of either side; UDP: 0, for it is not known
	// Unanswered counts the segments to the client since its last answer: probes and repetitions.
	Unanswered int
}

// Link is the host's path to an instance.
type Link struct {
	IP4     netip.Addr
	IP6     netip.Addr
	IfIndex int              // of the host's end of the veth
	Host    string           // its name
	MAC     net.HardwareAddr // of the instance's end
	HostMAC net.HardwareAddr
	Netns   string // path of the network namespace, for callers that must enter it
	Service ServiceKey
	Reach   []Reach // of the instance's spec
	OfHost  bool    // its program has the network of the host instead
}

// Outbound shares among tenants what a host has for the connections that instances open to other
// machines. driver/network/nat implements it. Each method may take milliseconds.
type Outbound interface {
	// Charge makes a tenant pay for the connections of a link.
	Charge(l Link, t Tenant) error
	// Forget ends that. The addresses of the link may have another tenant next.
	Forget(l Link) error
}

// SandboxEventKind is the kind of a sandbox event.
type SandboxEventKind string

const (
	SandboxNotified SandboxEventKind = "notified" // it is ready: sd_notify READY=1, or Notify
	SandboxExited   SandboxEventKind = "exited"   // its program ended
	// SandboxSilent says that the shim of the sandbox does not answer, and why. Its program runs on.
	// The shim is asked again until SandboxAnswers or SandboxExited.
	SandboxSilent SandboxEventKind = "silent"
	// SandboxAnswers says that the shim answers again.
	SandboxAnswers SandboxEventKind = "answers"
)

// SandboxEvent is one event in a sandbox.
type SandboxEvent struct {
	Kind SandboxEventKind
	Exit Exit   // of SandboxExited
	Why  string // of SandboxSilent
}

// Usage is the resource use of a sandbox.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
	PIDs        int64
}

// Uncounted is a number of Usage that nothing counts, or that could not be read.
const Uncounted = -1

// Strain is the use of a sandbox since its start, beside the limits in force.
type Strain struct {
	CPU       time.Duration
	Throttled time.Duration // its processes waited for its processor limit
	Stalled   time.Duration // its processes waited for memory (PSI, some); 0: not known
	Memory    int64         // bytes, at most a second old
	CPUs      float64       // the limit in force; 0: none
	MemoryMax int64         // likewise, in bytes
}

// PathUse is the experience of the TCP connections that an instance accepted, in totals.
type PathUse struct {
	RTT     time.Duration // the sum of all samples of the smoothed round trip time
	Samples uint64
	Resent  uint64 // segments
}

// Cgroups makes the groups that limit and count sandboxes (driver/sandbox/cgroup).
type Cgroups interface {
	// Make makes the group of a name such as "pando/host1/default/7", or finds it. It sets no
	// limit.
	Make(name string) (Cgroup, error)
	// Prune removes the group and its parents, up to the first that holds a process.
	Prune(name string)
}

// Cgroup limits and counts one sandbox.
type Cgroup interface {
	// Limit sets the limits of a spec, and lifts the limits that the spec does not have. If this
	// machine cannot hold a limit, the error names its controller.
	Limit(Resources) error
	// Devices lets the group open the devices of every instance, and these, and no other. Nil may
	// be called for a new group alone.
	Devices(granted []Device) error
	// Usage returns the use of the group since it was made.
	Usage() Usage
	// Strain returns the fast part of the use, with the limits in force.
	Strain() Strain
	// OOMKilled reports whether the kernel killed a process of the group for its memory use.
	OOMKilled() bool
	// Entry returns the way into the group.
	Entry() CgroupEntry
	// Processes returns the ids of all processes of the group, in the caller's PID namespace.
	Processes() ([]int, error)
	// Holds reports whether a process is in the group.
	Holds(pid int) bool
	// Remove removes the group. Every process in it has ended.
	Remove() error
}

// CgroupEntry is the way of a new process into a cgroup without its parent. Paths begin at the root
// of the hierarchies.
type CgroupEntry struct {
	Tasks  []string `json:"tasks,omitempty"`  // v1: the first thread writes its id into each
	Folder string   `json:"folder,omitempty"` // v2: the process is cloned into it
}

// Prober probes the health of an instance (driver/sandbox/probe).
type Prober interface {
	// Probe returns nil when the instance answered as the probe wants, else an error with its
	// answer.
	Probe(ctx context.Context, p Probe, s Sandbox, fallback Port) error
}

// Image names the files of a service that has an image. A service without one runs programs of its
// host.
type Image struct {
	// Reference is the image in the words of the spec: NAME[:TAG][@DIGEST], oci:FOLDER[:TAG] or
	// docker-archive:FILE.
	Reference string `json:"reference"`
	// Digest is sha256:…, which the reference named at the deploy. So every host runs the same bytes.
	Digest string `json:"digest,omitempty"`
	// Host read the image from a folder or a file. Other hosts get it there. Empty: a registry has it.
	Host HostName `json:"host,omitempty"`
	// Inside: the address of the registry may be inside the network of the hosts. Only an operator, or
	// the list of registries on a server's host, says so. A token alone never does.
	Inside bool `json:"inside,omitempty"`
	// Gave lists the words of the spec that come from the configuration of the image.
	Gave []string `json:"gave,omitempty"`
	// Prove: its registry has to send each blob to this host once, also one that is here for another
	// image. An agent sets it for the images of tenants.
	Prove bool `json:"-"`
	// For is the tenant whose share of the host's images it takes. Empty: none.
	For Tenant `json:"-"`
}

// Bundle is a folder that a deploy sends to the hosts with the program. Instances see it read-only,
// at the path that it has on the deploying host.
type Bundle struct {
	Folder string `json:"folder"` // absolute after loading
	// Digest is sha256:…, of the files at the deploy. So every host runs the same bytes.
	Digest string   `json:"digest,omitempty"`
	Host   HostName `json:"host,omitempty"` // read the folder
}

// BundlePrefix begins the reference of a bundle in a store of images.
const BundlePrefix = "bundle:"

// Image returns the bundle in the form in which hosts store it and send it to each other.
func (b Bundle) Image() Image {
	return Image{Reference: BundlePrefix + b.Folder, Digest: b.Digest, Host: b.Host}
}

// Origin tells which bytes an image is, and which words of the spec it gave, for a reason.
func (i Image) Origin() string {
	if i.Digest == "" {
		return ""
	}
	text := "; image " + i.Reference + " is " + i.Digest
	if strings.HasPrefix(i.Reference, BundlePrefix) {
		text = "; " + i.Reference + " is " + i.Digest
	}
	if len(i.Gave) > 0 {
		text += ", which gave " + strings.Join(i.Gave, ", ")
	}
	return text
}

// ImageConfig is the part of an image's configuration that a spec can have as well.
type ImageConfig struct {
	Architecture string            `json:"architecture"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Command      []string          `json:"command,omitempty"`
	Environment  map[string]string `json:"environment,omitempty"`
	WorkingDir   string            `json:"working_dir,omitempty"`
	User         string            `json:"user,omitempty"`
	StopSignal   string            `json:"stop_signal,omitempty"`
	Exposed      []string          `json:"exposed,omitempty"` // ports such as 80/tcp: a hint
	Volumes      []string          `json:"volumes,omitempty"` // folders that outlive an instance
	Health       Health            `json:"health,omitzero"`   // from its healthcheck: the live probe
}

// ImageStatus describes an image in the store of one host.
type ImageStatus struct {
	Host       HostName     `json:"host"`
	Digest     string       `json:"digest"`
	References []string     `json:"references"` // that named it on this host
	Config     ImageConfig  `json:"config"`
	Layers     []ImageLayer `json:"layers"`   // the lowest first
	Unpacked   bool         `json:"unpacked"` // an instance can start at once
	Used       time.Time    `json:"used"`     // last start, deploy or pull
	Services   []ServiceKey `json:"services"` // whose newest spec has it
}

// ImagesMatching returns the images that a word of an operator names: a reference, a digest, or the
// beginning of one.
func ImagesMatching(all []ImageStatus, word string) (out []ImageStatus) {
	const digitsMin = 6
	begin := strings.TrimPrefix(word, "sha256:")
	for _, i := range all {
		hex := strings.TrimPrefix(i.Digest, "sha256:")
		begins := len(begin) >= digitsMin && strings.HasPrefix(hex, begin)
		if begins || slices.Contains(i.References, word) {
			out = append(out, i)
		}
	}
	return out
}

// Bytes returns the packed size of the image.
func (s ImageStatus) Bytes() (n int64) {
	for _, l := range s.Layers {
		n += l.Bytes
	}
	return n
}

// ImageLayer is one layer of an image.
type ImageLayer struct {
	Digest string `json:"digest"` // of the packed bytes
	Files  string `json:"files"`  // digest of the unpacked archive
	Bytes  int64  `json:"bytes"`  // packed
}

// ImageRoot is the way into the files of an image on this host, and the user of a program in it.
type ImageRoot struct {
	Layers []string // folders below the folder of all layers, the highest first
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string // of the user; may be empty
	// Owners are the ids of the owners of its files that are larger than the usual ones, in order. At
	// most LargeIDsMax.
	Owners []uint32
}

// LargeIDsMax bounds the large ids of an image or a program. The kernel takes 340 ranges, in one page.
const LargeIDsMax = 128

// ImageOperators are the requests of operators about the images of the server's host.
type ImageOperators interface {
	// Images lists the images, the last used first.
	Images(ctx context.Context) ([]ImageStatus, error)
	// PullImage brings the image that a reference names now, or the files that another host has read.
	PullImage(ctx context.Context, i Image) (ImageStatus, error)
	// RemoveImage deletes an image that no service and no instance uses.
	RemoveImage(ctx context.Context, digest string) error
}

// Images keeps the images of one host. driver/sandbox/image implements it with folders of layers.
type Images interface {
	// Resolve finds the image that a reference names now, or the one of the digest if there is a
	// digest. It returns the image's configuration. It copies the layers of a folder or a file into
	// this host's store. An image that is here for another tenant counts only once its registry has
	// let this tenant read it; "" is an operator of the hosts.
	Resolve(ctx context.Context, by Tenant, i Image) (Image, ImageConfig, error)
	// Pull brings the layers of a resolved image to this host: from one of the hosts if it has them,
	// else from the registry. It returns at once if they are here.
	Pull(ctx context.Context, i Image, from []Host) error
	// Proven reports whether the repository of an image has sent every blob of it to this host. The
	// blobs of other images are here as well, and a manifest that names one is no right to it.
	Proven(i Image) bool
	// Root returns the files of an image, and the user that a spec names: a name, a uid or uid:gid.
	// An empty user is root. ErrNotReady: its layers are not on this host.
	Root(digest, user string) (ImageRoot, error)
}
