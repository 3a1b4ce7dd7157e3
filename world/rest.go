package world

import (
	"net/netip"
	"slices"

	"pando.run/pando"
)

// restingMax is the number of released addresses that no other service gets yet. A client with an
// old answer of the DNS so reaches no foreign service. A leader remembers the releases that it saw.
const restingMax = 1000

// rested is a released VIP with its last service.
type rested struct {
	vip     netip.Addr
	service pando.ServiceKey
}

// retire remembers the address of a removed service.
func (l *ledgers) retire(s pando.Service) {
	if !s.VIP4.IsValid() {
		return
	}
	l.resting = slices.DeleteFunc(l.resting, func(r rested) bool { return r.vip == s.VIP4 })
	l.resting = append(l.resting, rested{s.VIP4, s.ServiceKey})
	l.resting = l.resting[max(0, len(l.resting)-restingMax):]
}

// Rests reports whether a VIP was lately the address of a service that is removed.
func (l *ledgers) Rests(vip netip.Addr) bool {
	return slices.ContainsFunc(l.resting, func(r rested) bool { return r.vip == vip })
}

// LastVIP returns the last address of a removed service, if it rests.
func (l *ledgers) LastVIP(s pando.ServiceKey) (vip netip.Addr, ok bool) {
	for _, r := range slices.Backward(l.resting) {
		if r.service == s {
			return r.vip, true
		}
	}
	return vip, false
}
