package ebpf

import (
	"math/bits"
	"slices"
	"sync"

	"pando.run/pando"
)

// share assigns the buckets of a table to a service's endpoints.
type share struct {
	ids     []string
	weights []int
	buckets []uint16 // indices into ids; nil: no endpoint has a bucket
	slots   []uint32 // of ids, while the share is in force; the lock of the driver guards them
}

// shares has the shares of all services. Its methods may be called from any goroutine.
type shares struct {
	// buckets fills a table with indices into ids, in proportion to weights.
	buckets func(ids []string, weights []int, size int) []uint16

	mu      sync.Mutex
	inForce map[pando.ServiceKey]*share
	// foreseen has shares computed ahead: each may be the next of its service.
	foreseen map[pando.ServiceKey]*share
}

func newShares(buckets func(ids []string, weights []int, size int) []uint16) *shares {
	return &shares{
		buckets:  buckets,
		inForce:  map[pando.ServiceKey]*share{},
		foreseen: map[pando.ServiceKey]*share{},
	}
}

// of returns the share for a table. It reuses the one in force or the foreseen one if that matches.
func (s *shares) of(t pando.SteeringTable) *share {
	out := &share{ids: make([]string, len(t.Endpoints)), weights: make([]int, len(t.Endpoints))}
	for n, e := range t.Endpoints {
		out.ids[n], out.weights[n] = string(e.Instance), e.Weight
	}
	s.mu.Lock()
	known := []*share{s.inForce[t.Service], s.foreseen[t.Service]}
	s.mu.Unlock()
	for _, k := range known {
		if k != nil && slices.Equal(k.ids, out.ids) && slices.Equal(k.weights, out.weights) {
			return k
		}
	}
	takers := 0
	for _, w := range out.weights {
		takers += min(1, w)
	}
	size := 0
	if known[0] != nil {
		size = len(known[0].buckets)
	}
	out.buckets = s.buckets(out.ids, out.weights, bucketsFor(takers, size))
	return out
}

// bucketsFor returns the size of a table for so many endpoints that take flows. It is a power of
// two, at least 128 buckets an endpoint up to 16,384, and 16 an endpoint beyond. A table shrinks
// only when a quarter is enough: another size moves all flows that the connection table does not
// have.
func bucketsFor(takers, now int) int {
	powerOf := func(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }
	want := max(min(powerOf(chunkBuckets*takers), 16384), powerOf(16*takers), chunkBuckets)
	if now > want && now/4 < want {
		return now
	}
	return want
}

// foresee computes the share that the next publication will most likely need, before a caller waits
// for it. That share gives a weight to the first of these endpoints that will soon take flows.
func (s *shares) foresee(t pando.SteeringTable) {
	n := slices.IndexFunc(t.Endpoints, func(e pando.Endpoint) bool {
		return e.Soon > 0 && e.Weight == 0
	})
	if n < 0 {
		return
	}
	t.Endpoints = slices.Clone(t.Endpoints)
	t.Endpoints[n].Weight = t.Endpoints[n].Soon
	next := s.of(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreseen[t.Service] = next
}

// enforce makes a share the one in force. The caller holds the lock of the driver.
func (s *shares) enforce(service pando.ServiceKey, now *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.inForce[service]; last != nil && last != now {
		last.slots = nil // not in force any more, but it may return
	}
	s.inForce[service] = now
}

// forget drops the shares of a service.
func (s *shares) forget(service pando.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inForce, service)
	delete(s.foreseen, service)
}
