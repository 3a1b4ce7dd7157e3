package pando

import (
	"context"
	"io"
	"net/netip"
)

// MoveMark names a move of an instance to another host. The record of the instance has it from
// before its program stops until one commit of control gives the instance to the other host. The
// host that it leaves takes the mark away if the move fails, also in a commit. So exactly one host
// continues the program.
type MoveMark struct {
	ID   string   `json:"id"`
	From HostName `json:"from"`
}

// Move is a move of a running instance, with its memory and its connections.
type Move struct {
	MoveMark
	Instance Instance   `json:"instance"` // as recorded, on the host that it leaves
	Spec     Spec       `json:"spec"`     // of its revision, with defaults
	VIP4     netip.Addr `json:"vip4,omitzero"`
	VIP6     netip.Addr `json:"vip6,omitzero"`
	To       Host       `json:"to"`
}

// MoveStatus describes a move that has ended.
type MoveStatus struct {
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	From     HostName   `json:"from"`
	To       HostName   `json:"to"`
	Reason   string     `json:"reason"` // for the host
	Bytes    int64      `json:"bytes"`  // that were sent
	// StoppedSeconds is how long the program was stopped. StoppedBytes were sent during that time.
	StoppedSeconds float64 `json:"stopped_seconds"`
	StoppedBytes   int64   `json:"stopped_bytes"`
}

// Arrival is the program of a move on its new host: it is complete, and stopped.
type Arrival struct {
	IP4 netip.Addr `json:"ip4,omitzero"`
	IP6 netip.Addr `json:"ip6,omitzero"`
	// The rest is that of MoveStatus, up to here.
	Bytes          int64   `json:"bytes,omitempty"`
	StoppedBytes   int64   `json:"stopped_bytes,omitempty"`
	StoppedSeconds float64 `json:"stopped_seconds,omitempty"`
}

// Travels is the part of a Sandbox that moves to another host.
type Travels interface {
	// Leave writes the program with its connections to w, for SandboxSpec.Arrives. It calls stopping
	// right before the program stops. No packet reaches or leaves the program from then on. The
	// sandbox keeps packets to it. After an error the program runs as before, and else it waits for
	// Resume or Remove.
	//
	// ErrUnsupported, ErrRefused: the program cannot move, for the given reason.
	Leave(ctx context.Context, w io.Writer, stopping func() error) error
	// Packets returns the packets that came since Leave, at most PacketBytesMax.
	Packets() [][]byte
	// Deliver sends packets of Packets to the program.
	Deliver(packets [][]byte) error
	// Arriving returns the move that brought the program, until Resume.
	Arriving() (MoveMark, bool)
}

// PacketBytesMax bounds the packets that wait for a stopped program. Later ones are dropped, and
// their senders repeat them.
const PacketBytesMax = 8 << 20

// MovePeers are the requests about moves to the agent of a host.
type MovePeers interface {
	// Expect announces a move to its new host. Only control asks for it.
	Expect(ctx context.Context, h Host, m Move) error
	// Depart sends an instance to the new host. It returns when the program waits there, stopped.
	// Only control asks for it.
	Depart(ctx context.Context, h Host, m Move) (Arrival, error)
	// Carry sends the program of an expected move to its new host.
	Carry(ctx context.Context, h Host, id string, program io.Reader) (Arrival, error)
	// Landed waits until the program runs on its new host.
	Landed(ctx context.Context, h Host, id string) (MoveStatus, error)
	// Hand sends packets for the program to its new host, which delivers them once it runs.
	Hand(ctx context.Context, h Host, id string, packets [][]byte) error
	// GiveUp ends a move on its new host, unless the instance belongs there already.
	GiveUp(ctx context.Context, h Host, id string) error
	// Moving reports whether a move from a host may still end on another one.
	Moving(ctx context.Context, h Host, id string) (bool, error)
}

// MoveAgent is the answering side of MovePeers. from is the asking host, "" for control.
type MoveAgent interface {
	// Expect prepares for a move to this host.
	Expect(ctx context.Context, m Move) error
	// Depart sends an instance of this host to another one.
	Depart(ctx context.Context, m Move) (Arrival, error)
	// Carry takes the program of an expected move.
	Carry(ctx context.Context, from HostName, id string, program io.Reader) (Arrival, error)
	// Landed waits until the program of a move runs here.
	Landed(ctx context.Context, id string) (MoveStatus, error)
	// Hand delivers packets to the program of a move once it runs.
	Hand(ctx context.Context, from HostName, id string, packets [][]byte) error
	// GiveUp ends a move to this host, unless the instance belongs here already.
	GiveUp(ctx context.Context, id string) error
	// Moving reports whether a move from this host may still end on another one.
	Moving(ctx context.Context, id string) (bool, error)
}

// MoveOperators are the requests of operators about moves.
type MoveOperators interface {
	// Migrate moves instance i, or the first that serves with i "", to a host, or to the best one
	// with to "". It returns when the program runs there.
	Migrate(ctx context.Context, s ServiceKey, i InstanceID, to HostName, by Asker) (MoveStatus, error)
}
