package pando

import (
	"fmt"
	"slices"
	"time"
)

// CopiesMax is the largest number of hosts that keep one state.
const CopiesMax = 7

// Keeper is the record of a state that several hosts keep. Control writes it. Only its host may
// change one thing: it moves a joining host to the copies, or reports a silent one.
//
// Every acknowledged commit of the service is on every host of Copies. A host leaves Copies by a
// write of this record alone.
type Keeper struct {
	Service ServiceKey `json:"service"`
	Host    HostName   `json:"host"` // one of Copies: it repairs, salvages and answers for main
	Want    int        `json:"want"` // number of copies by the newest spec
	Copies  []HostName `json:"copies"`
	// Joining hosts receive every new commit, and older ones from Host. Then they join Copies.
	Joining []HostName `json:"joining,omitempty"`
	// Silent hosts of Copies or Joining hold their lease and take no commits, as Host reports.
	Silent []HostName `json:"silent,omitempty"`
	// Since has the epoch at which each host but the first began to join. A host that joins again
	// drops its earlier copy.
	Since  map[HostName]int64 `json:"since,omitempty"`
	Epoch  int64              `json:"epoch"` // grows with every write
	Reason string             `json:"reason,omitempty"`
	At     time.Time          `json:"at,omitzero"`
}

// Key returns the key of the record.
func (k Keeper) Key() Key { return KeeperKey(k.Service) }

// KeeperKey returns the key of the keeper of a service's state.
func KeeperKey(s ServiceKey) Key { return MakeKey(KindKeeper, string(s.Tenant), string(s.Name)) }

// Check returns nil if the record is consistent, else the reason to refuse it.
func (k Keeper) Check() error {
	if !slices.Contains(k.Copies, k.Host) {
		return fmt.Errorf("%w: the keeper of %s: %s has no copy", ErrInvalid, k.Service, k.Host)
	}
	return nil
}

// Whole reports whether a commit can be acknowledged: there are as many copies as the spec wants.
func (k Keeper) Whole() bool { return len(k.Copies) >= max(1, k.Want) }

// Holds reports whether a host gets every new commit.
func (k Keeper) Holds(h HostName) bool {
	return slices.Contains(k.Copies, h) || slices.Contains(k.Joining, h)
}

// Receivers returns the hosts that must take a commit of a host before it is acknowledged.
func (k Keeper) Receivers(from HostName) []HostName {
	all := slices.Concat(k.Copies, k.Joining)
	return slices.DeleteFunc(all, func(h HostName) bool { return h == from })
}

// Shipment is the head of objects on their way from one host to another.
type Shipment struct {
	Service ServiceKey `json:"service"`
	From    HostName   `json:"from"`
	Epoch   int64      `json:"epoch"` // of the keeper's record, as the sender has it
	// Refs are to be set, by their names below the service. The receiver drops the other refs of
	// Instance.
	Refs     map[string]ObjectID `json:"refs,omitempty"`
	Instance InstanceID          `json:"instance,omitempty"`
	Have     []ObjectID          `json:"have,omitempty"`  // commits on which the objects rest
	Edge     []ObjectID          `json:"edge,omitempty"`  // commits without their parents
	Seen     []ObjectID          `json:"seen,omitempty"`  // edges of the receiver, by its receipt
	Asked    bool                `json:"asked,omitempty"` // Seen counts
	Open     []ObjectID          `json:"open,omitempty"`  // edges of the receiver, with parents
}

// Receipt is the answer to a shipment.
type Receipt struct {
	Taken bool       `json:"taken"`          // the objects and refs are durable
	Epoch int64      `json:"epoch"`          // of the keeper's record, as the receiver has it
	Gone  bool       `json:"gone,omitempty"` // it keeps no copy
	Has   []ObjectID `json:"has,omitempty"`  // if not taken: commits that the receiver has whole
	Edge  []ObjectID `json:"edge,omitempty"` // and where its history begins
	// Merged is the newest commit of the branch that another host has merged into main.
	Merged ObjectID `json:"merged,omitzero"`
}

// StateWanted is a host's request for a commit with all that it reaches.
type StateWanted struct {
	Service ServiceKey `json:"service"`
	Want    ObjectID   `json:"want"`
	Have    []ObjectID `json:"have,omitempty"`
	Edge    []ObjectID `json:"edge,omitempty"` // where the asker's history begins
}
