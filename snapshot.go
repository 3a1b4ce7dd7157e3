package pando

import (
	"context"
	"time"
)

// Freezer writes the processes of a sandbox to files, and starts them again from those files
// (driver/criu).
type Freezer interface {
	// Missing returns why this host can freeze nothing, or nil. The error has the next command.
	Missing() error
	// Freeze writes the tree of a program to the folder. The tree is stopped when it returns. After
	// an error it runs as before.
	Freeze(ctx context.Context, f Frozen) error
	// Thaw starts the tree again, inside the same or other namespaces. After an error none of its
	// processes is left.
	Thaw(ctx context.Context, f Frozen) error
}

// Frozen describes a program for a Freezer.
type Frozen struct {
	Inside int    // a process of the sandbox, as the host numbers it: CRIU enters its namespaces
	PID    int    // of the program, as the sandbox numbers it
	UID    uint32 // of the program
	GID    uint32
	Dir    string // the folder of the files
	Flows  bool   // established TCP connections belong to it; without it, Thaw closes them
	// Pipe is the inode of the pipe that the program writes its output to.
	Pipe uint64
	// The rest is for Thaw: the pipe that takes the output, and the cgroups of the sandbox.
	Output uintptr
	Groups string
	Entry  CgroupEntry
}

// SnapshotStatus describes a stored snapshot of an instance.
type SnapshotStatus struct {
	Digest   string     `json:"digest"`
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Revision int        `json:"revision"`
	Host     HostName   `json:"host"` // that has the files
	At       time.Time  `json:"at"`
	Bytes    int64      `json:"bytes"`
	// Kernel and CPU are those of the machine of the instance. No other kind can restore it.
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	// Stopped is how long the program stood still.
	StoppedSeconds float64 `json:"stopped_seconds"`
	Encrypted      bool    `json:"encrypted,omitempty"`
	// Missing is the reason why a host did not list its snapshots.
	Missing string `json:"missing,omitempty"`
}
