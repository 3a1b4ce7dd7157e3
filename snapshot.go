package pando

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Freezer writes the processes of a sandbox to files, and starts them again from those files
// (driver/sandbox/criu). It believes no file about the rights of a process: a file whose process would have
// another user, group, capability or filter than Frozen is refused, by Freeze and by Thaw.
type Freezer interface {
	// Missing returns why this host can freeze nothing, or nil. The error has the next command.
	Missing() error
	// Freeze writes the tree of a program to the folder. Its processes are stopped, before and after.
	Freeze(ctx context.Context, f Frozen) error
	// Thaw starts the tree again, inside the same or other namespaces. Its processes are stopped when
	// it returns. After an error none of them is left.
	Thaw(ctx context.Context, f Frozen) error
}

// Freezes is the part of a Sandbox that makes snapshots.
type Freezes interface {
	// Freeze writes the processes and the files in memory to a folder, for SandboxSpec.From. They are
	// stopped when it returns: Resume continues them. After an error they run as before.
	//
	// ErrUnsupported, ErrRefused: the program cannot be frozen, for the given reason.
	Freeze(ctx context.Context, dir string) (Machine, error)
}

// Frozen describes a program for a Freezer.
type Frozen struct {
	Inside int    // a process of the sandbox, as the host numbers it: CRIU enters its namespaces
	PID    int    // of the program, as the sandbox numbers it
	UID    uint32 // of the program
	GID    uint32
	// Filter is the filter of system calls that every thread has, as the kernel takes it. Nil: none.
	Filter []byte
	Dir    string // the folder of the files
	// Pipe is the inode of the pipe that the program writes its output to.
	Pipe uint64
	// The rest is for Thaw: the pipe that takes the output, and the cgroups of the sandbox.
	Output uintptr
	// Connections continue their connections instead of closing them.
	Connections bool
	Groups      string
	Entry       CgroupEntry
}

// Machine is a kind of machine, as far as a snapshot depends on it.
type Machine struct {
	Kernel string `json:"kernel"` // its release
	CPU    string `json:"cpu"`    // the name of its processor
}

// SnapshotStatus describes a stored snapshot of an instance.
type SnapshotStatus struct {
	Digest   string     `json:"digest"`
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Revision int        `json:"revision"`
	SpecHash string     `json:"spec_hash,omitempty"` // as in Instance
	Host     HostName   `json:"host"`                // that has the files
	At       time.Time  `json:"at"`
	Bytes    int64      `json:"bytes"`
	// Machine is that of the instance. No other kind can restore it.
	Machine Machine `json:"machine"`
	// Encrypted is set if only a host with the cluster's key reads the files.
	Encrypted bool `json:"encrypted,omitempty"`
	// Seed is set if Pando took it for the new instances of its revision (see Replicate).
	Seed bool `json:"seed,omitempty"`
	// StoppedSeconds is how long the program stood still.
	StoppedSeconds float64 `json:"stopped_seconds"`
	// Missing is the reason why a host did not list its snapshots.
	Missing string `json:"missing,omitempty"`
}

// SnapshotKey encrypts the snapshots of a tenant. A server derives it from the cluster's authority,
// so a cluster that is restored from a backup has the same one.
type SnapshotKey string

// SnapshotSealKey proves the descriptions of snapshots of one instance and revision. A server
// derives it as well. Only the host of the instance gets it.
type SnapshotSealKey string

// SnapshotKeys are what the host of an instance needs for its snapshots.
type SnapshotKeys struct {
	Files SnapshotKey     `json:"files"`
	Seal  SnapshotSealKey `json:"seal"`
}

// SealedSnapshot is a description of a snapshot with the proof that Pando wrote it. Anybody can make
// files and labels like those of a snapshot.
type SealedSnapshot struct {
	SnapshotStatus
	// Copy is set if another host took it. The seal does not cover it.
	Copy bool `json:"copy,omitempty"`
	// Seal proves every field of the description but Host and Missing.
	Seal string `json:"seal"`
}

// Prove returns the description of a snapshot with its proof.
func (k SnapshotSealKey) Prove(s SnapshotStatus) (SealedSnapshot, error) {
	seal, err := k.sealOf(s)
	return SealedSnapshot{SnapshotStatus: s, Seal: seal}, err
}

// Proves reports whether the holder of this key wrote a description.
func (k SnapshotSealKey) Proves(s SealedSnapshot) bool {
	want, err := k.sealOf(s.SnapshotStatus)
	return k != "" && err == nil && hmac.Equal([]byte(want), []byte(s.Seal))
}

func (k SnapshotSealKey) sealOf(s SnapshotStatus) (string, error) {
	s.Host, s.Missing = "", ""
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("seal the description of a snapshot: %w", err)
	}
	sum := hmac.New(sha256.New, []byte(k))
	sum.Write(append([]byte("pando snapshot 1\n"), text...))
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// SnapshotAsk is an order to store a snapshot.
type SnapshotAsk struct {
	Instance InstanceID // "": the first that serves
	Plain    bool       // do not encrypt its files
}

// SnapshotsMax is the largest number of snapshots of one service on one host. A new one takes the
// place of the oldest.
const SnapshotsMax = 5

// SeedsMax is the largest number of seeds of one service on one host: one for each of its newest
// revisions. They do not count against SnapshotsMax.
const SeedsMax = 2

// ReplicateFrom is the beginning of a new instance.
type ReplicateFrom string

// FromSnapshot lets new instances of a host continue a snapshot of their revision, its seed. The
// first instance of the revision on that host starts the program, and the host takes the seed when
// that instance is ready.
const FromSnapshot ReplicateFrom = "snapshot"

// Replicate describes how new instances of a service begin.
type Replicate struct {
	From ReplicateFrom `json:"from,omitempty"` // "": the start of the program
	// Plain leaves the seeds without encryption. It needs From.
	Plain bool `json:"plain,omitempty"`
}

// Seeded reports whether new instances of the service continue a seed.
func (s Spec) Seeded() bool { return s.Replicate.From == FromSnapshot }

// Snapshots keeps the snapshots of one host. driver/sandbox/image implements it, so Images.Pull brings one
// from another host and Images.Root finds its files.
type Snapshots interface {
	// Keep makes a folder, calls freeze, and stores the files of the folder with the description that
	// freeze completed, proved by a key. The folder of an encrypted snapshot is in memory, and only the
	// encrypted files reach a disk.
	Keep(
		ctx context.Context, s SnapshotStatus, keys SnapshotKeys,
		freeze func(dir string, s *SnapshotStatus) error,
	) (SealedSnapshot, error)
	// Open returns the files of a snapshot of a service for SandboxSpec.From. It decrypts an encrypted
	// one into memory with the key, and done frees that. ErrForbidden: it is no snapshot of the
	// service, another cluster encrypted it, or it is damaged.
	Open(
		ctx context.Context, s ServiceKey, digest string,
		key func(context.Context) (SnapshotKey, error),
	) (from string, done func(), err error)
	// Kept returns the snapshots of a service, or of all services for the zero key, newest first. An
	// image never is one: this host wrote the description of each, or brought it from the host that
	// did.
	Kept(s ServiceKey) ([]SealedSnapshot, error)
	// Drop deletes a snapshot of a service. ErrNotFound: this host does not have it.
	Drop(ctx context.Context, s ServiceKey, digest string) error
}

// SnapshotPeers are the requests about snapshots to the agent of a host.
type SnapshotPeers interface {
	// Snapshot stores a snapshot of an instance of a host. The instance runs on.
	Snapshot(ctx context.Context, h Host, ask SnapshotAsk) (SealedSnapshot, error)
	// Snapshots returns the snapshots that a host keeps of a service, or of all for the zero key. The
	// caller looks at the proofs.
	Snapshots(ctx context.Context, h Host, s ServiceKey) ([]SealedSnapshot, error)
	// DropSnapshot deletes a snapshot of a service on a host.
	DropSnapshot(ctx context.Context, h Host, s ServiceKey, digest string) error
}

// SnapshotAgent is the answering side of SnapshotPeers.
type SnapshotAgent interface {
	// Snapshot stores a snapshot of an instance of this host.
	Snapshot(ctx context.Context, ask SnapshotAsk) (SealedSnapshot, error)
	// Snapshots returns the snapshots that this host keeps.
	Snapshots(ctx context.Context, s ServiceKey) ([]SealedSnapshot, error)
	// DropSnapshot deletes a snapshot on this host.
	DropSnapshot(ctx context.Context, s ServiceKey, digest string) error
}

// SnapshotOperators are the requests of operators about snapshots.
type SnapshotOperators interface {
	// Snapshot stores a snapshot of an instance of a service.
	Snapshot(
		ctx context.Context, s ServiceKey, ask SnapshotAsk, by Asker,
	) (SnapshotStatus, error)
	// Snapshots returns the snapshots on all hosts, newest first, with one request per host. A host
	// that does not answer has one entry, with the reason in Missing.
	Snapshots(ctx context.Context, s ServiceKey) ([]SnapshotStatus, error)
	// RemoveSnapshot deletes a snapshot on every host that has it.
	RemoveSnapshot(ctx context.Context, s ServiceKey, digest string, by Asker) error
	// RestoreSnapshot starts one more instance, which continues from a snapshot. A digest may be
	// cut to its first 6 digits. It returns once the ask is answered.
	RestoreSnapshot(ctx context.Context, s ServiceKey, digest string, by Asker) (Intent, error)
}
