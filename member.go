package pando

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"
)

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
}

func (m Member) Key() Key { return MemberKey(m.Name) }

// MemberKey returns the key of a host's membership.
func MemberKey(h HostName) Key { return key(KindMember, string(h)) }

// PublicKeyHash returns the hash of a public key in DER form (SubjectPublicKeyInfo).
func PublicKeyHash(der []byte) string {
	h := sha256.Sum256(der)
	return hex.EncodeToString(h[:])
}

// Admits returns nil if a certificate for a public key (DER) is this member's, else the reason.
func (m Member) Admits(publicKey []byte) error {
	if m.Server || m.PublicKey == "" || m.PublicKey == PublicKeyHash(publicKey) {
		return nil
	}
	return fmt.Errorf("%w: host %s is a member with another key: its former certificate is invalid", ErrForbidden, m.Name)
}

// NotMember returns the error for a host with a certificate but without a member record.
func NotMember(h HostName) error {
	return fmt.Errorf("%w: host %s was removed from the cluster; to join again: `pando down --purge` there, "+
		"then `pando up --join` with a new token", ErrForbidden, h)
}

// Vouches returns nil if the record of a host agrees with its membership, else the reason. The host
// itself writes that record, and others route packets by it.
func (m Member) Vouches(h Host) error {
	switch {
	case h.Name != m.Name || h.Slot != m.Slot:
		return fmt.Errorf("%w: host %s in slot %d writes as host %s in slot %d", ErrForbidden, m.Name, m.Slot, h.Name, h.Slot)
	case h.Address != m.Address, m.Address6.IsValid() && h.Address6 != m.Address6:
		return fmt.Errorf("%w: host %s is a member at %s (%s) and now has the addresses %s (%s); `pando restart` there records them",
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
)

// HostStatus is one line of `pando hosts`.
type HostStatus struct {
	Host
	State  HostState `json:"state"`
	Server bool      `json:"server"` // it runs the server
	// Heard is the newest sign of its agent. Zero: none since the server started.
	Heard     time.Time `json:"heard,omitzero"`
	Instances int       `json:"instances"`        // placed on it
	Losses    *Losses   `json:"losses,omitempty"` // packets its steering lost; nil: it does not answer
}
