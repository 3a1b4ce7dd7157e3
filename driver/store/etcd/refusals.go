package etcd

import (
	"log/slog"
	"sync"
	"time"

	"pando.run/pando"
)

// Refusals counts the calls of one member that the gate did not answer in full.
type Refusals struct {
	Refused  uint64 // calls that no agent makes
	Withheld uint64 // reads of a service that has no part on the host
}

// refusals counts for each member, and warns of refused calls: the first of each minute.
type refusals struct {
	log   *slog.Logger
	clock pando.Clock
	mu    sync.Mutex
	of    map[pando.HostName]*refusal // members only
}

type refusal struct {
	Refusals
	warned time.Time
}

const warnEvery = time.Minute

func (r *refusals) entry(h pando.HostName) *refusal {
	if r.of == nil {
		r.of = map[pando.HostName]*refusal{}
	}
	if r.of[h] == nil {
		r.of[h] = &refusal{}
	}
	return r.of[h]
}

func (r *refusals) refused(h pando.HostName, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(h)
	e.Refused++
	if now := r.clock.Now(); now.Sub(e.warned) >= warnEvery {
		e.warned = now
		r.log.Warn("the store refuses a call of a member", "host", h, "what", what,
			"refused", e.Refused, "next", "look at that host, or put it out: pando hosts rm "+string(h))
	}
}

func (r *refusals) withheld(h pando.HostName, prefix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(h)
	if e.Withheld++; e.Withheld == 1 {
		r.log.Info("a member reads a service that is not on it, and gets no records", "host", h,
			"prefix", prefix)
	}
}

// Refusals returns the counts of a member since the server started.
func (s *Server) Refusals(h pando.HostName) Refusals {
	r := s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entry(h).Refusals
}
