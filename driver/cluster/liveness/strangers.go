package liveness

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// A new host may probe this one before this one has its record.
	recordWithin = 3 * time.Second
	strangersMax = 256 // addresses; packets of more count at once
)

// strangers counts packets and streams from addresses of no watched host. They count as forged
// unless their host becomes watched within recordWithin.
type strangers struct {
	mu     sync.Mutex
	of     map[netip.Addr]stranger // at most strangersMax
	forged uint64
}

type stranger struct {
	since time.Time
	sent  uint64
}

// note counts one packet or stream.
func (s *strangers) note(from netip.Addr, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, seen := s.of[from]
	if !seen && len(s.of) >= strangersMax {
		s.forged++
		return
	}
	if !seen {
		is.since = now
	}
	is.sent++
	if s.of == nil {
		s.of = map[netip.Addr]stranger{}
	}
	s.of[from] = is
}

// total returns the number of forged packets and streams. It forgets those of watched hosts.
func (s *strangers) total(now time.Time, watched func(netip.Addr) bool) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, is := range s.of {
		switch {
		case watched(from):
			delete(s.of, from)
		case now.Sub(is.since) >= recordWithin:
			s.forged += is.sent
			delete(s.of, from)
		}
	}
	return s.forged
}
