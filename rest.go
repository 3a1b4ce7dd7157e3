package pando

import (
	"fmt"
	"net/netip"
	"time"
)

// Rest is the record of a released VIP, or of the released slot of a host. While other addresses and
// slots are free, nobody else gets it: clients with an old answer of the DNS, or with an open
// connection, so reach no foreign service. The record outlives the leader that released it.
type Rest struct {
	VIP     netip.Addr `json:"vip,omitzero"` // else it is the rest of a slot
	Service ServiceKey `json:"service,omitzero"`
	Slot    int        `json:"slot,omitempty"`
	Host    HostName   `json:"host,omitempty"`
	At      time.Time  `json:"at"` // of the release
}

// RestingSlots is the prefix of the records of released slots.
const RestingSlots = Root + Key(KindRest) + "/slot/"

// Key returns the key of the record.
func (r Rest) Key() Key {
	if r.VIP.IsValid() {
		return MakeKey(KindRest, "vip", r.VIP.String())
	}
	return RestingSlots + Key(fmt.Sprintf("%05d", r.Slot))
}
