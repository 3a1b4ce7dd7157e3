package pando

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
)

// Host is the record of a machine that runs the agent. It lives as long as the agent's lease. The
// first write of each agent is its epoch. Once a newer agent of the same host has joined, every
// write of the older one fails with ErrFenced.
type Host struct {
	Name       HostName     `json:"name"`
	Slot       int          `json:"slot"`     // unique, kept for life; chooses the host's addresses
	Address    netip.Addr   `json:"address"`  // other hosts and clients reach it here
	Address6   netip.Addr   `json:"address6"` // the same by IPv6; zero: IPv4 only
	Endpoint   string       `json:"endpoint"` // of its agent: unix:///PATH or http://HOST:PORT
	CPUs       float64      `json:"cpus"`
	Memory     int64        `json:"memory_bytes"`
	PIDs       int64        `json:"pids"`       // process ids that it can have; 0: unknown
	Instances4 netip.Prefix `json:"instances4"` // addresses of its instances
	Instances6 netip.Prefix `json:"instances6"`
	Joined     time.Time    `json:"joined"`
	Version    string       `json:"version"`
	Leaving    bool         `json:"leaving,omitempty"`   // no new instances; its own move away
	Volumes    bool         `json:"volumes,omitempty"`   // it keeps volumes, tmpfs and read_only
	Binds      bool         `json:"binds,omitempty"`     // it shows folders at other paths
	Tunnel     bool         `json:"tunnel,omitempty"`    // others send it flows
	Copies     bool         `json:"copies,omitempty"`    // its build keeps copies of states
	Freezes    bool         `json:"freezes,omitempty"`   // it makes and restores snapshots
	Runs       bool         `json:"runs,omitempty"`      // its agent runs instances of runs
	Bundles    bool         `json:"bundles,omitempty"`   // it brings bundles to its instances
	Secrets    bool         `json:"secrets,omitempty"`   // its instances get secrets of the store
	Configs    bool         `json:"configs,omitempty"`   // its instances get configs
	Ordinals   bool         `json:"ordinals,omitempty"`  // it runs stateful services
	Externals  bool         `json:"externals,omitempty"` // it serves external endpoints
	Fronts     bool         `json:"fronts,omitempty"`    // it serves at its own address
	Straight   bool         `json:"straight,omitempty"`  // its drains wait for AtConnect's sockets
	VMs        bool         `json:"vms,omitempty"`       // its build runs virtual machines
	Grants     bool         `json:"grants,omitempty"`    // its build gives grants
	Crun       bool         `json:"crun,omitempty"`      // it has the runtime crun
	Layout     int          `json:"layout,omitempty"`    // its newest; 0: the first
	// Frozen is why the host keeps what it has and follows nothing. "": it follows the store.
	Frozen string `json:"frozen,omitempty"`
	// Adopted is the generation of the store to which the host has brought what runs on it.
	Adopted int `json:"adopted,omitempty"`
	// Adrift names instances that run there without a record, separated by spaces: a restored backup
	// lacks their service or its spec. Each is an AdriftName, and there are at most AdriftMax.
	Adrift string `json:"adrift,omitempty"`
	// Labels are words of its operator, as LabelsOf returns them.
	Labels string `json:"labels,omitempty"`
	// Segment is the network on which the host answers ARP and neighbour discovery for VIPs, as the
	// prefix of its address there. "": on none.
	Segment string `json:"segment,omitempty"`
}

// LabelsMax is the largest number of labels of a host.
const LabelsMax = 32

// LabelsOf returns labels as a host's record has them: NAME=VALUE, sorted by name, separated by
// spaces.
func LabelsOf(labels []string) (string, error) {
	if len(labels) > LabelsMax {
		return "", fmt.Errorf("%w: %d labels of a host: want at most %d",
			ErrInvalid, len(labels), LabelsMax)
	}
	sorted := slices.Clone(labels)
	slices.Sort(sorted)
	last := ""
	for _, l := range sorted {
		name, _, err := CutLabel(l)
		if err != nil {
			return "", err
		}
		if name == SpreadHost {
			return "", fmt.Errorf("%w: label %s: each host has the label host already, with its name",
				ErrInvalid, l)
		}
		if name == last {
			return "", fmt.Errorf("%w: a host has the label %s twice; give it once", ErrInvalid, name)
		}
		last = name
	}
	return strings.Join(sorted, " "), nil
}

// CutLabel returns the name and the value of a label such as zone=a.
func CutLabel(label string) (name, value string, err error) {
	name, value, _ = strings.Cut(label, "=")
	if CheckLabel("label", name) != nil || !labelValue.MatchString(value) {
		return "", "", fmt.Errorf("%w: label %q: want NAME=VALUE of a-z, 0-9 and '-', such as zone=a",
			ErrInvalid, label)
	}
	return name, value, nil
}

var labelValue = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?$`)

// Label returns the value of a label, or "" if the host does not have it. Each host has the label
// host, its name.
func (h Host) Label(name string) string {
	if name == SpreadHost {
		return string(h.Name)
	}
	for l := range strings.SplitSeq(h.Labels, " ") {
		if n, value, ok := strings.Cut(l, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// AdriftMax bounds the instances that a host's record names as adrift. Tenants share it.
const AdriftMax = 100

// AdriftName returns the name of an instance in Host.Adrift: TENANT/SERVICE/INSTANCE.
func AdriftName(i Instance) string {
	return fmt.Sprintf("%s/%s/%s", i.Service.Tenant, i.Service.Name, i.ID)
}

// ParseAdrift returns the service and the instance of a word of Host.Adrift. A former build names the
// instance alone.
func ParseAdrift(word string) (s ServiceKey, i InstanceID) {
	parts := strings.Split(word, "/")
	if len(parts) != 3 {
		return s, InstanceID(word)
	}
	return ServiceKey{Tenant: Tenant(parts[0]), Name: ServiceName(parts[1])}, InstanceID(parts[2])
}

// Check returns nil if the record can be a host's, else the reason. The slot chooses the addresses
// of the host's instances, and other hosts route packets to them.
func (h Host) Check() error {
	v4, v6 := InstanceRange(h.Slot)
	switch {
	case h.Slot < 0 || h.Slot >= Slots():
		return fmt.Errorf("%w: host %s is in slot %d: want 0 to %d",
			ErrInvalid, h.Name, h.Slot, Slots()-1)
	case h.Instances4 != v4 && h.Instances4.IsValid(), h.Instances6 != v6 && h.Instances6.IsValid():
		return fmt.Errorf("%w: host %s claims %s and %s for its instances: slot %d has %s and %s",
			ErrInvalid, h.Name, h.Instances4, h.Instances6, h.Slot, v4, v6)
	}
	if h.Labels == "" {
		return nil
	}
	_, err := LabelsOf(strings.Split(h.Labels, " "))
	return err
}

// The ports of a host at which Pando itself may listen. No service publishes them there.
const (
	OwnPortFirst = 7400
	OwnPortLast  = LivenessPort
)

// Addresses of the cluster. Every host answers for every VIP. Each host has its own range for
// instances.
var (
	VIPs4 = netip.MustParsePrefix("10.127.0.0/16")
	VIPs6 = netip.MustParsePrefix("fd70:616e:646f:ffff::/64")
	// Instances4 has the addresses of the instances of all hosts.
	Instances4 = netip.MustParsePrefix("10.128.0.0/10")
	// Gateway is an address of every host's pando0. DNS answers there. It is also the source of
	// packets to a VIP from a host without an address of its own.
	Gateway4 = netip.MustParseAddr("10.127.0.1")
	Gateway6 = netip.MustParseAddr("fd70:616e:646f:ffff::1")
)

// UseRanges sets the IPv4 addresses that the cluster gives out, before anything uses them. All
// hosts of a cluster have the same. The VIPs are a /16, because a flow's key has their last two
// bytes. The instances are a /8 to /16: a /20 for each host.
func UseRanges(vips, instances netip.Prefix) error {
	switch {
	case !vips.Addr().Is4() || vips.Bits() != 16 || vips != vips.Masked():
		return fmt.Errorf("%w: the VIPs cannot be %s; give an IPv4 range like 10.127.0.0/16",
			ErrInvalid, vips)
	case !instances.Addr().Is4() || instances.Bits() < 8 || instances.Bits() > 16 ||
		instances != instances.Masked():
		return fmt.Errorf("%w: the instances cannot have %s; give an IPv4 range of /8 to /16, like "+
			"10.128.0.0/10", ErrInvalid, instances)
	case vips.Overlaps(instances):
		return fmt.Errorf("%w: the VIPs %s and the instances %s overlap; give two ranges",
			ErrInvalid, vips, instances)
	}
	VIPs4, Gateway4, Instances4 = vips, vips.Addr().Next(), instances
	return nil
}

// Slots returns the largest number of hosts in this cluster: each has a /20 of the instances.
func Slots() int { return min(HostSlots, 1<<(20-Instances4.Bits())) }

// HostLease is how long a host's record outlives its agent.
const HostLease = 8 * time.Second

// HostSlots is the largest number of hosts in any cluster.
const HostSlots = 1024

// InstanceRange returns the address ranges for instances of the host in this slot: a /20 and a /96.
func InstanceRange(slot int) (v4, v6 netip.Prefix) {
	n := binary.BigEndian.Uint32(Instances4.Addr().AsSlice()) + uint32(slot)<<12
	v4 = netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))), 20)
	a := netip.MustParseAddr("fd70:616e:646f::").As16()
	a[6], a[7], a[8], a[9] = 0, 1, byte(slot>>8), byte(slot)
	return v4, netip.PrefixFrom(netip.AddrFrom16(a), 96)
}

// Member is the record of a host that was admitted to the cluster. It stays while the host is away,
// and keeps the slot that chooses the host's addresses.
type Member struct {
	Name    HostName   `json:"name"`
	Slot    int        `json:"slot"`
	Address netip.Addr `json:"address"` // from its newest join
	// Address6 is the same by IPv6. Zero: IPv4 only, or an earlier build admitted the host.
	Address6 netip.Addr `json:"address6,omitzero"`
	// PublicKey is PublicKeyHash of its certificates' key. The server's own host has none: its
	// agent makes a new key at every start, beside the authority. A host that an earlier build
	// admitted has none until its next renewal.
	PublicKey string    `json:"public_key,omitempty"`
	Since     time.Time `json:"since"`    // of its first admission
	Server    bool      `json:"server"`   // it runs the server
	Renewed   time.Time `json:"admitted"` // of its newest certificate
	// Rights of its operators, with the newest change of each. An earlier build drops them, which
	// takes the rights away.
	Rights map[Right]Granting `json:"rights,omitempty"`
	// Grants that its owner gives to instances there, with the newest change of each. A server's
	// host gives none by itself either.
	Grants map[Grant]Granting `json:"grants,omitempty"`
	// Drain is the mark of a drained host. Nil: it takes new instances.
	Drain *HostDrain `json:"drain,omitempty"`
}

// HostDrain is an operator's mark on a host. The host takes no new instances, and those that it has
// start elsewhere before they leave. The mark outlives restarts of the host and changes of leader.
type HostDrain struct {
	By Asker     `json:"by"`
	At time.Time `json:"at"`
	// Until is the time at which the mark ends by itself, by the clock of At. Zero: never.
	Until time.Time `json:"until,omitzero"`
}

// HostDrainMax is the longest time that a drain of a host may be given.
const HostDrainMax = 366 * 24 * time.Hour

// HostLeft is an instance that is still on a drained host.
type HostLeft struct {
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Stays    bool       `json:"stays,omitempty"` // nothing moves it while its cause lasts
	Reason   string     `json:"reason"`          // why it is there
}

// HostDrainStatus is the progress of the drain of a host.
type HostDrainStatus struct {
	Host  HostName   `json:"host"`
	Drain *HostDrain `json:"drain,omitempty"` // nil: the host is not drained
	Here  bool       `json:"here"`            // it has its lease
	// Left has at most HostLeftMax of the instances there.
	Left  []HostLeft `json:"left"`
	Count int        `json:"count"` // all instances there
	Stays int        `json:"stays"` // those of them that nothing moves
}

// HostLeftMax bounds the instances that a HostDrainStatus names.
const HostLeftMax = 100

// HostWorker is an Operators that serves requests about what runs on hosts.
type HostWorker interface {
	// HostWork returns these requests.
	HostWork() HostOperators
}

// HostOperators are the requests of operators about what runs on hosts.
type HostOperators interface {
	// DrainHost marks a host as drained for the time keep (0: until UndrainHost). A second request
	// replaces the time. ErrNotFound: no such member.
	DrainHost(ctx context.Context, h HostName, keep time.Duration, by Asker) (HostDrainStatus, error)
	// UndrainHost takes the mark away. Nothing moves back by itself.
	UndrainHost(ctx context.Context, h HostName, by Asker) (HostDrainStatus, error)
	// HostDrain returns what is left on a host, and why.
	HostDrain(ctx context.Context, h HostName) (HostDrainStatus, error)
	// Rebalance moves instances from loaded hosts to others, start-first. It begins at most ShiftsMax
	// moves, and none while some are in progress. The caller asks again until nothing moves.
	Rebalance(ctx context.Context, ask RebalanceAsk, by Asker) (Rebalance, error)
}

// Key returns the key of the member's record.
func (m Member) Key() Key { return MemberKey(m.Name) }

// MemberKey returns the key of a host's membership.
func MemberKey(h HostName) Key { return MakeKey(KindMember, string(h)) }

// PublicKeyHash returns the hash of a public key in DER form (SubjectPublicKeyInfo).
func PublicKeyHash(der []byte) string {
	h := sha256.Sum256(der)
	return hex.EncodeToString(h[:])
}

// Admits returns nil if a certificate for a public key (DER) is this member's, else the reason. The
// first server's own agent makes a new key at every start, so its record has none.
func (m Member) Admits(publicKey []byte) error {
	if m.PublicKey == "" || m.PublicKey == PublicKeyHash(publicKey) {
		return nil
	}
	return fmt.Errorf("%w: host %s is a member with another key: its former certificate is invalid",
		ErrForbidden, m.Name)
}

// ComesFrom returns nil if a caller with this member's certificate calls from the member's address,
// else the reason. A caller on the server's own machine has another one.
func (m Member) ComesFrom(from netip.Addr) error {
	if !m.Address.IsValid() || from.IsLoopback() || from == m.Address || from == m.Address6 {
		return nil
	}
	return fmt.Errorf("%w: the certificate of host %s, a member at %s, is used from %s: either that "+
		"machine is a copy, and `pando down --purge` there ends it, or the host has moved, and `pando "+
		"daemons restart` there tells the cluster", ErrForbidden, m.Name, m.Address, from)
}

// NotMember returns the error for a host with a certificate but without a member record.
func NotMember(h HostName) error {
	return fmt.Errorf("%w: host %s was removed from the cluster; to join again: `pando down "+
		"--purge` there (its volumes stay), then `pando up --join` with a new token", ErrForbidden, h)
}

// Vouches returns nil if the record of a host agrees with its membership, else the reason. The host
// itself writes that record, and others route packets by it.
func (m Member) Vouches(h Host) error {
	switch {
	case h.Name != m.Name || h.Slot != m.Slot:
		return fmt.Errorf("%w: host %s in slot %d writes as host %s in slot %d",
			ErrForbidden, m.Name, m.Slot, h.Name, h.Slot)
	case h.Address != m.Address, m.Address6.IsValid() && h.Address6 != m.Address6:
		return fmt.Errorf("%w: host %s is a member at %s (%s) and now has the addresses %s (%s); "+
			"`pando daemons restart` there records them",
			ErrForbidden, m.Name, m.Address, m.Address6, h.Address, h.Address6)
	}
	return h.Check()
}

// HostState is the presence of a host's agent.
type HostState string

const (
	HostHere HostState = "here" // its agent has its lease
	// HostAway: no lease. Its instances may still run, but do not count until it returns.
	HostAway HostState = "away"
	// HostFrozen: its agent does not recognise the store, and keeps what it has.
	HostFrozen HostState = "frozen"
)

// HostStatus is one line of `pando hosts`.
type HostStatus struct {
	Host
	State  HostState `json:"state"`
	Server bool      `json:"server"` // it runs the server
	Leads  bool      `json:"leads"`  // its server decides for the cluster
	// ServerSilent means that its server does not answer the server that was asked.
	ServerSilent bool `json:"server_silent,omitempty"`
	// Rights of its operators beyond those of every member.
	Rights map[Right]Granting `json:"rights,omitempty"`
	// Given are the grants of its owner, with the newest change of each.
	Given map[Grant]Granting `json:"given,omitempty"`
	// Drain is the mark of a drained host. Nil: it takes new instances.
	Drain *HostDrain `json:"drain,omitempty"`
	// Staying names the services with instances that stay on the drained host, with the reason of one.
	Staying string `json:"staying,omitempty"`
	// Heard is the newest sign of its agent. Zero: none since the server started.
	Heard     time.Time `json:"heard,omitzero"`
	Instances int       `json:"instances"`        // placed on it
	Losses    *Losses   `json:"losses,omitempty"` // packets its steering lost; nil: not known
	// Unread is why the losses are not known although the host answers. "": they are, or it does not.
	Unread string `json:"unread,omitempty"`
	// SkewSeconds is how far its clock is ahead of the answering server's, less what the way of the
	// answer may explain. Nil: it does not answer.
	SkewSeconds *float64 `json:"skew_seconds,omitempty"`
}

// The skew of a host's clock from which it is shown, and from which it is a fault. Pando orders and
// measures by one clock, but certificates, tokens, schedules and logs rest on each host's own.
const (
	SkewShown = time.Second
	SkewFault = 5 * time.Second
)

// SkewOf returns how far another clock is ahead of the own one. The other clock was read at `at`,
// between two readings of the own one. What the time between them may explain is no skew.
func SkewOf(at, before, after time.Time) time.Duration {
	half := after.Sub(before) / 2
	off := at.Sub(before.Add(half))
	switch {
	case off > half:
		return off - half
	case off < -half:
		return off + half
	}
	return 0
}

// Peers connects servers and agents to the agents of all hosts. driver/cluster/peer implements it over
// HTTP. Nothing durable goes this way. ErrUnavailable names the host.
type Peers interface {
	// Applied returns once the steering of a host reflects every record of services up to a store
	// revision. missing says what the tables in force leave out, or is "".
	Applied(ctx context.Context, h Host, of []ServiceKey, at StoreRevision) (missing string, err error)
	// Logs returns the lines of instances of a service on one host that a query wants. An instance
	// without a log is left out, and so is that of another service. ErrNotFound: none has a log.
	Logs(ctx context.Context, h Host, s ServiceKey, i []InstanceID, q LogQuery) (LogLines, error)
	// Counters returns the counters of a host's steering.
	Counters(ctx context.Context, h Host) ([]EndpointCounters, error)
	// Losses returns the losses of a host's steering.
	Losses(ctx context.Context, h Host) (Losses, error)
	// Exec runs a command inside an instance of a host (see Sandbox.Session).
	Exec(ctx context.Context, h Host, i InstanceID, s SessionSpec) (io.ReadWriteCloser, error)
	// Usage returns the use of every instance that runs on a host, or of one service's.
	Usage(ctx context.Context, h Host, s ServiceKey) ([]InstanceUsage, error)
	WorkPeers
	// Volumes returns the volumes of a host.
	Volumes(ctx context.Context, h Host, q VolumeQuery) ([]KeptVolume, error)
	// RemoveVolume deletes a volume of a service on a host (see Volumes.RemoveVolume).
	RemoveVolume(ctx context.Context, h Host, s ServiceKey, name string) error
	SnapshotPeers
	MovePeers
	// Meters streams the measurements of a host, the newest one at each time, until ctx ends or the
	// host falls silent. Then the channel closes.
	Meters(ctx context.Context, h Host) (<-chan Meters, error)
	// StateLog returns the newest commits of a service's main branch.
	StateLog(ctx context.Context, h Host, s ServiceKey, max int) ([]StateCommit, error)
	// State serves git's read-only smart HTTP protocol for a service with its objects on host h.
	State(h Host) http.Handler
	// ShipState sends objects of a state to a host that keeps a copy. write writes them.
	ShipState(ctx context.Context, h Host, write func(io.Writer) error) (Receipt, error)
	// FetchState opens the objects of a state that this host lacks.
	FetchState(ctx context.Context, h Host, q StateWanted) (io.ReadCloser, error)
}

// HostAgent is the answering side of Peers. The agent implements it. Its arguments are those of
// Peers without the host.
type HostAgent interface {
	// Applied returns once the steering of this host reflects services up to a store revision.
	Applied(ctx context.Context, of []ServiceKey, at StoreRevision) (missing string, err error)
	// Logs returns the lines of instances of a service on this host that a query wants.
	Logs(ctx context.Context, s ServiceKey, i []InstanceID, q LogQuery) (LogLines, error)
	// Counters returns the counters of this host's steering.
	Counters(ctx context.Context) ([]EndpointCounters, error)
	// Losses returns the losses of this host's steering.
	Losses(ctx context.Context) (Losses, error)
	// Exec runs a command inside an instance of this host. ErrRefused: the host
	// has no place for a session, or the tenant of the token in ctx has its share.
	Exec(ctx context.Context, i InstanceID, s SessionSpec) (io.ReadWriteCloser, error)
	// Usage returns the use of every instance that runs here, or of one service's.
	Usage(ctx context.Context, s ServiceKey) ([]InstanceUsage, error)
	WorkAgent
	// Volumes returns the volumes of this host.
	Volumes(ctx context.Context, q VolumeQuery) ([]KeptVolume, error)
	// RemoveVolume deletes a volume of a service on this host.
	RemoveVolume(ctx context.Context, s ServiceKey, name string) error
	SnapshotAgent
	MoveAgent
	// Meters streams the measurements of this host, the newest one at each time, until ctx ends.
	Meters(ctx context.Context) (<-chan Meters, error)
	// StateLog returns the newest commits of a service's main branch.
	StateLog(ctx context.Context, s ServiceKey, max int) ([]StateCommit, error)
	// State serves git's read-only smart HTTP protocol.
	State() http.Handler
	// TakeState receives objects that the named host sends by ShipState.
	TakeState(ctx context.Context, from HostName, r io.Reader) (Receipt, error)
	// GiveState writes the objects that a host wants by FetchState.
	GiveState(ctx context.Context, q StateWanted, w io.Writer) error
}

// LogQuery chooses lines of the logs of instances.
type LogQuery struct {
	Lines  int       // the newest lines of each instance to begin with, at most LogLinesMax
	Follow bool      // also lines that arrive later
	Since  time.Time // lines from this time on; zero: of any age
	Match  string    // lines that match this regular expression (RE2); "": all
	// Bytes bounds the lines of each log to begin with, by their weight. The newest stay. The host of
	// the log sets it. 0: its own bound.
	Bytes int
}

// LogLinesMax is the largest LogQuery.Lines.
const LogLinesMax = 100_000

// Check returns nil if the query can be answered, else the reason.
func (q LogQuery) Check() error {
	if q.Lines < 0 || q.Lines > LogLinesMax {
		return fmt.Errorf("%w: %d lines of a log: want 0 to %d", ErrInvalid, q.Lines, LogLinesMax)
	}
	if len(q.Match) > 1000 {
		return fmt.Errorf("%w: the regular expression has %d bytes, at most 1000",
			ErrTooLarge, len(q.Match))
	}
	re, err := syntax.Parse(q.Match, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if prog, err := syntax.Compile(re.Simplify()); err != nil || len(prog.Inst) > matchStepsMax {
		return fmt.Errorf("%w: the regular expression repeats too much: the host that reads the log takes "+
			"at most %d steps", ErrTooLarge, matchStepsMax)
	}
	return nil
}

// matchStepsMax bounds the program of a regular expression. A few bytes of repetitions are megabytes
// of it, for each log.
const matchStepsMax = 2000

// LogLine is one line of an instance's log.
type LogLine struct {
	At       time.Time // of its write, to a tenth of a second
	Instance InstanceID
	Text     string // any bytes, without the line break
}

// logLineBytes is the memory of a line beside its text.
const logLineBytes = 64

// Weight returns the memory of a line in bytes.
func (l LogLine) Weight() int64 { return int64(len(l.Text)) + logLineBytes }

// LogLines are lines that arrive one by one.
type LogLines interface {
	// Next returns the next line. It returns io.EOF after the last one.
	Next() (LogLine, error)
	// Close ends the lines. It may be called while Next waits.
	Close() error
}

// Cluster is the store's record of itself. A host compares it with the store that it has seen, so
// that an empty, older or foreign store ends nothing that runs.
type Cluster struct {
	ID         string    `json:"id"`         // random; it stays for the cluster's life
	Generation int       `json:"generation"` // 1 at birth; each restore of a backup raises it
	Born       time.Time `json:"born"`
	Restored   time.Time `json:"restored,omitzero"` // when a backup was restored last
	Backup     time.Time `json:"backup,omitzero"`   // when that backup was made
	Layout     int       `json:"layout,omitempty"`  // of the records that its members write
	// Authority is the hash of the public key of the cluster's authority. "": of an earlier build.
	Authority string `json:"authority,omitempty"`
}

// ClusterKey is the key of the store's record of itself.
const ClusterKey = Root + Key(KindCluster) + "/own"

// Key returns the key of the record.
func (c Cluster) Key() Key { return ClusterKey }

// Sighting is the store that a host has seen last. The zero value matches every store.
type Sighting struct {
	Cluster    string        `json:"cluster"`
	Generation int           `json:"generation"`
	Revision   StoreRevision `json:"revision"` // the newest that it has seen
	// Adopted is the generation to which the host has brought what runs on it.
	Adopted int `json:"adopted"`
	// Adrift names instances that run here without a record since then, separated by spaces.
	Adrift string `json:"adrift,omitempty"`
	// Records is a JSON array of the last records of these instances, for the next agent.
	Records string `json:"records,omitempty"`
}

// AdoptionTime is how long after a restore a host may bring records of its instances back.
const AdoptionTime = 10 * time.Minute

// Sightings keeps the sighting of a host, so that it outlives the agent. driver/store/sighting implements
// it with files.
type Sightings interface {
	// Load returns the newest sighting. running means that instances of a former agent run here.
	Load(running bool) (Sighting, error)
	// Save replaces the sighting.
	Save(s Sighting) error
}

// Accepts returns nil if a store at a revision continues the store that the host has seen, else
// the reason. c is nil for a store without a record of itself.
func (s Sighting) Accepts(c *Cluster, at StoreRevision) error {
	const next = "`pando restore FILE` on the server's host brings the cluster back; until then " +
		"this host keeps what it has"
	switch {
	case s.Cluster == "":
		return nil
	case c == nil:
		return fmt.Errorf("%w: the store is empty or damaged: it has no record of cluster %s; %s",
			ErrFrozen, s.Cluster, next)
	case c.ID != s.Cluster:
		return fmt.Errorf("%w: the store is that of cluster %s, and this host belongs to cluster %s; %s",
			ErrFrozen, c.ID, s.Cluster, next)
	case c.Generation < s.Generation:
		return fmt.Errorf("%w: the store has generation %d, and this host has seen generation %d; %s",
			ErrFrozen, c.Generation, s.Generation, next)
	case c.Generation == s.Generation && at < s.Revision:
		return fmt.Errorf("%w: the store is an older copy: it is at revision %d, "+
			"and this host has seen revision %d; %s", ErrFrozen, at, s.Revision, next)
	}
	return nil
}

// LivenessPort is the UDP and TCP port of the probes between hosts.
const LivenessPort = 7405
