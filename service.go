package pando

import (
	"net/netip"
	"time"
)

// ServicePhase is what a service as a whole is doing.
type ServicePhase string

const (
	ServiceDeploying ServicePhase = "deploying" // its current revision has not yet reached min instances in rotation
	ServiceServing   ServicePhase = "serving"   //
	ServiceRolling   ServicePhase = "rolling"   // a newer revision is taking over
	ServiceDegraded  ServicePhase = "degraded"  // fewer than min in rotation; Reason says why
	ServiceRemoving  ServicePhase = "removing"  // asked to go: its instances drain and merge
)

// Service is the record of one service: what is wanted, and how far it got.
type Service struct {
	ServiceKey
	VIP4     netip.Addr   `json:"vip4"`
	VIP6     netip.Addr   `json:"vip6"`
	Current  int          `json:"current"`           // the revision that serves, 0 before the first has
	Target   int          `json:"target"`            // the newest revision that is wanted; != Current during a rollout
	Latest   int          `json:"latest"`            // the highest revision number ever given
	Phase    ServicePhase `json:"phase"`             //
	Home     HostName     `json:"home,omitempty"`    // where its instances are placed, all of them
	Reason   string       `json:"reason,omitempty"`  //
	Pin      *Pin         `json:"pin,omitempty"`     //
	Rolling  int          `json:"rolling,omitempty"` // how many instances a rollout has to end with
	Purge    bool         `json:"purge,omitempty"`   // its state goes with it
	Removing bool         `json:"removing,omitempty"`
	Asked    time.Time    `json:"asked"` // of the newest spec
}

// Pin is a number of instances that an operator fixed for a while; automatic scaling rests until it ends.
type Pin struct {
	Instances int       `json:"instances"`
	Until     time.Time `json:"until,omitzero"` // zero: until it is lifted
	By        Asker     `json:"by"`
	Before    int       `json:"before"` // how many there were: what the pin added leaves when it ends
}

// Holds says whether the pin (which may be nil) is in force.
func (p *Pin) Holds(now time.Time) bool {
	return p != nil && (p.Until.IsZero() || now.Before(p.Until))
}

// RevisionState is where one revision of a spec stands.
type RevisionState string

const (
	RevisionRolling RevisionState = "rolling" // its first instances are being tried
	RevisionCurrent RevisionState = "current"
	RevisionRetired RevisionState = "retired" // replaced by a newer one
	RevisionFailed  RevisionState = "failed"  // rolled back; Reason says why
)

// Revision is one version of a service's spec. Its number grows by one with every deploy that changes something.
type Revision struct {
	Service ServiceKey    `json:"service"`
	Number  int           `json:"number"`
	Spec    Spec          `json:"spec"` // with defaults
	State   RevisionState `json:"state"`
	Reason  string        `json:"reason,omitempty"`
	At      time.Time     `json:"at"`
	By      Asker         `json:"by"`
}

// StateHead is the main head of a service's state: the commit into which every branch is merged. It is the one part of
// state that lives in the store; objects and branches are on the hosts.
type StateHead struct {
	Service ServiceKey `json:"service"`
	Commit  ObjectID   `json:"commit"`
	Host    HostName   `json:"host"` // whose objects are complete for this commit
	At      time.Time  `json:"at"`
	Merges  int64      `json:"merges"` // merges applied since birth
}
