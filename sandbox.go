package pando

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Sandboxes starts what contains an instance. driver/process implements it with namespaces and a shim per instance,
// driver/sim in virtual time.
type Sandboxes interface {
	// Start makes a sandbox and starts the program in it; it returns once the program is running, not once it is ready.
	Start(ctx context.Context, s SandboxSpec) (Sandbox, error)
	// Prepare does of a start all that can be undone without a trace: no instruction of the program has run when it returns. Start
	// of the same instance, as it was prepared, has only to let the program go; Discard gives up what was prepared and not
	// started, if there is such a thing. Who prepares does one of the two; Attach never finds what was only prepared.
	Prepare(ctx context.Context, s SandboxSpec) error
	Discard(i InstanceID)
	// Attach finds every sandbox that outlived a former agent of this host.
	Attach(ctx context.Context) ([]Sandbox, error)
}

// SandboxSpec is what an agent asks of its driver.
type SandboxSpec struct {
	Instance Instance
	Spec     Spec       // with defaults
	VIP4     netip.Addr // every instance answers for it (DSR)
	VIP6     netip.Addr
}

// Sandbox is one running instance as its host sees it. Its methods may be called from any goroutine.
type Sandbox interface {
	Instance() InstanceID
	Service() ServiceKey
	Link() Link
	// Listener accepts connections to the instance's own API socket. A connection from a process outside the sandbox is
	// closed and counted, never returned.
	Listener() net.Listener
	// Events tells of the program, first of what a former agent was told already. The channel closes after SandboxExited.
	Events() <-chan SandboxEvent
	// Notify makes SandboxNotified happen: the program has said in another way that it is ready, and says it once. It is
	// remembered with the sandbox.
	Notify(ctx context.Context) error
	// Pause stops every process of the sandbox; Resume lets it go on.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Stop sends the spec's stop signal, and SIGKILL after the spec's stop_seconds or when ctx ends. It returns once
	// no process of the sandbox is left.
	Stop(ctx context.Context) error
	// Remove ends what is left and gives back namespaces, cgroups, addresses and mounts. It returns once the processes are gone;
	// the rest is reaped behind it.
	Remove(ctx context.Context) error
	// Exec runs a command inside and returns its exit code and the first 4 KiB of what it printed.
	Exec(ctx context.Context, command []string) (code int, output []byte, err error)
	// Flows counts the instance's established TCP connections and connected UDP sockets, those with a VIP as local address.
	Flows(ctx context.Context) (int, error)
	// Usage is what the sandbox has used since it started.
	Usage(ctx context.Context) (Usage, error)
	// LastLines returns the end of the instance's log as evidence: long lines are cut, what a terminal would obey is replaced.
	LastLines(n int) []string
}

// Link is how the host reaches an instance.
type Link struct {
	IP4     netip.Addr
	IP6     netip.Addr
	IfIndex int              // of the host's end of the veth
	Host    string           // its name
	MAC     net.HardwareAddr // of the instance's end
	HostMAC net.HardwareAddr
	Netns   string // path of the network namespace, for what must act inside it
}

// SandboxEventKind is what a sandbox tells of.
type SandboxEventKind string

const (
	SandboxNotified SandboxEventKind = "notified" // it is ready: sd_notify READY=1, or Notify
	SandboxExited   SandboxEventKind = "exited"
)

// SandboxEvent is one thing that happened in a sandbox.
type SandboxEvent struct {
	Kind SandboxEventKind
	Exit Exit // of SandboxExited
}

// Usage of a sandbox.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
	PIDs        int64
}

// Cgroups makes what limits and counts sandboxes (driver/cgroup).
type Cgroups interface {
	// Make makes the group of a name like "pando/host1/default/7", or finds it. It limits nothing yet.
	Make(name string) (Cgroup, error)
	// Prune removes the group and those above it, as far as nobody is in them.
	Prune(name string)
}

// Cgroup limits and counts one sandbox.
type Cgroup interface {
	// Limit sets the limits of a spec, and lifts those that the spec does not have. A limit that this machine cannot hold is
	// an error that names its controller.
	Limit(Resources) error
	Usage() Usage
	// OOMKilled says whether the kernel has killed something in the group for its memory.
	OOMKilled() bool
	Entry() CgroupEntry
	// Processes are the ids of all processes of the group, as this process counts them.
	Processes() ([]int, error)
	// Holds says whether a process is in the group.
	Holds(pid int) bool
	// Remove removes the group; whoever was in it has ended.
	Remove() error
}

// CgroupEntry is how a new process comes into a cgroup without its parent. Paths begin at the root of the hierarchies.
type CgroupEntry struct {
	Tasks  []string `json:"tasks,omitempty"`  // v1: the starting thread writes its id into each, and ends
	Folder string   `json:"folder,omitempty"` // v2: the process is cloned into it
}

// Prober asks an instance how it is (driver/probe).
type Prober interface {
	// Probe returns nil when the instance answered as the probe wants, else an error that says what it answered.
	Probe(ctx context.Context, p Probe, s Sandbox, fallback Port) error
}
