package pando

import (
	"net/netip"
	"time"
)

// ServicePhase is the state of a service as a whole.
type ServicePhase string

const (
	ServiceDeploying ServicePhase = "deploying" // its current revision is still below min instances
	ServiceServing   ServicePhase = "serving"
	ServiceRolling   ServicePhase = "rolling"  // a newer revision is taking over
	ServiceDegraded  ServicePhase = "degraded" // fewer than min in rotation; Reason has the cause
	ServiceRemoving  ServicePhase = "removing" // its instances drain and merge, then it is deleted
)

// Service is the record of one service: its target and its progress.
type Service struct {
	ServiceKey
	VIP4     netip.Addr   `json:"vip4"`
	VIP6     netip.Addr   `json:"vip6"`
	Current  int          `json:"current"` // the revision that serves; 0 before the first does
	Target   int          `json:"target"`  // the newest wanted revision; != Current during a rollout
	Latest   int          `json:"latest"`  // the highest revision number so far
	Phase    ServicePhase `json:"phase"`
	Home     HostName     `json:"home,omitempty"` // the one host of all its instances
	Reason   string       `json:"reason,omitempty"`
	Pin      *Pin         `json:"pin,omitempty"`
	Rolling  int          `json:"rolling,omitempty"` // instances that a rollout must end with
	Purge    bool         `json:"purge,omitempty"`   // removal deletes its state
	Removing bool         `json:"removing,omitempty"`
	Asked    time.Time    `json:"asked"` // when the newest spec arrived
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
	RevisionCurrent RevisionState = "current"
	RevisionRetired RevisionState = "retired" // replaced by a newer one
	RevisionFailed  RevisionState = "failed"  // rolled back; Reason has the cause
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
