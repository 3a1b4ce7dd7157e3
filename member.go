package pando

import (
	"net/netip"
	"time"
)

// Member is the record of a host that was admitted to the cluster. It stays while the host is away, and with it the slot
// that chooses the host's addresses.
type Member struct {
	Name    HostName   `json:"name"`
	Slot    int        `json:"slot"`
	Address netip.Addr `json:"address"`  // that it gave when it joined last
	Since   time.Time  `json:"since"`    // of its first admission
	Server  bool       `json:"server"`   // it runs the server
	Renewed time.Time  `json:"admitted"` // of its newest certificate
}

func (m Member) Key() Key { return MemberKey(m.Name) }

// MemberKey of a host.
func MemberKey(h HostName) Key { return key(KindMember, string(h)) }

// HostState is whether a host's agent is heard of.
type HostState string

const (
	HostHere HostState = "here" // its agent has its lease
	HostAway HostState = "away" // no lease: its instances may well run, and count for nothing until it returns
)

// HostStatus is one line of `pando hosts`.
type HostStatus struct {
	Host
	State     HostState `json:"state"`
	Server    bool      `json:"server"`           // it runs the server
	Heard     time.Time `json:"heard,omitzero"`   // the newest sign of its agent; zero: none since the server started
	Instances int       `json:"instances"`        // that are placed on it
	Losses    *Losses   `json:"losses,omitempty"` // what its steering did not carry; nil: it does not answer
}
