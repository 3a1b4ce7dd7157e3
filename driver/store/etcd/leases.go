package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	etcdlease "go.etcd.io/etcd/server/v3/lease"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
)

// Bounds of a member's leases and streams. An agent has one lease and three streams. When it joins
// again it takes a new lease, and the old one expires.
const (
	leaseSecondsMax = 60
	leasesMax       = 32 // per member; more are refused until one has ended
	streamsMax      = 64 // per member; likewise
)

// leases records the leases that members took since the server started. The keys of an older lease
// show its owner.
type leases struct {
	keys func(ctx context.Context, id int64) ([][]byte, error) // or etcdlease.ErrLeaseNotFound

	mu sync.Mutex
	of map[pando.HostName]map[int64]bool // at most leasesMax each
}

func newLeases(keys func(context.Context, int64) ([][]byte, error)) *leases {
	return &leases{of: map[pando.HostName]map[int64]bool{}, keys: keys}
}

// nearKeys returns the keys of a lease of this process's own store.
func nearKeys(
	look func(context.Context, *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error),
) func(context.Context, int64) ([][]byte, error) {
	return func(ctx context.Context, id int64) ([][]byte, error) {
		got, err := look(ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
		if err != nil {
			return nil, err
		}
		return got.Keys, nil
	}
}

func (l *leases) note(h pando.HostName, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[h] == nil {
		l.of[h] = map[int64]bool{}
	}
	l.of[h][id] = true
}

// mayGrant bounds the number and the duration of a member's leases.
func (l *leases) mayGrant(ctx context.Context, h pando.HostName, r *pb.LeaseGrantRequest) error {
	if r.TTL > leaseSecondsMax || r.ID != 0 {
		return refused(h, fmt.Sprintf("take lease %d for %d s: want one of at most %d s without a number",
			r.ID, r.TTL, leaseSecondsMax))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of[h]) >= leasesMax {
		for id := range l.of[h] {
			if _, err := l.keys(ctx, id); errors.Is(err, etcdlease.ErrLeaseNotFound) {
				delete(l.of[h], id)
			}
		}
	}
	if len(l.of[h]) >= leasesMax {
		return status.Errorf(codes.ResourceExhausted,
			"host %s has %d leases: wait until one has ended", h, leasesMax)
	}
	return nil
}

func (l *leases) mayRevoke(h pando.HostName, id int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.of[h][id] {
		return refused(h, "end a lease that it has not taken")
	}
	delete(l.of[h], id)
	return nil
}

// own returns the reason to refuse a lease to a member, or nil. It accepts an ended lease: etcd
// refuses that one itself.
func (l *leases) own(ctx context.Context, h pando.HostName, id int64) error {
	keys, err := l.keys(ctx, id)
	if err != nil && !errors.Is(err, etcdlease.ErrLeaseNotFound) {
		return err
	}
	for _, k := range keys {
		if !owns(h, pando.Key(k)) {
			return refused(h, fmt.Sprintf("use lease %x, which holds %s", id, k))
		}
	}
	return nil
}

// streams are the open streams of members.
type streams struct {
	mu sync.Mutex
	of map[pando.HostName]map[*calling]bool // at most streamsMax each
}

// calling is one open call, with the member record that allowed it.
type calling struct {
	by  pando.Member
	end context.CancelCauseFunc
}

func newStreams() *streams { return &streams{of: map[pando.HostName]map[*calling]bool{}} }

// begin registers a call. The returned context ends with the membership.
func (s *streams) begin(
	ctx context.Context, m pando.Member,
) (_ context.Context, end context.CancelCauseFunc, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.of[m.Name]) >= streamsMax {
		return nil, nil, status.Errorf(codes.ResourceExhausted,
			"host %s has %d open calls: end one first", m.Name, streamsMax)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &calling{m, cancel}
	if s.of[m.Name] == nil {
		s.of[m.Name] = map[*calling]bool{}
	}
	s.of[m.Name][c] = true
	return ctx, func(cause error) {
		cancel(cause)
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.of[m.Name], c); len(s.of[m.Name]) == 0 {
			delete(s.of, m.Name)
		}
	}, nil
}

// sever ends the calls of hosts that are no longer members, have another key, or run no server any
// more.
func (s *streams) sever(now func(pando.HostName) (m pando.Member, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, calls := range s.of {
		m, ok := now(h)
		for c := range calls {
			demoted := c.by.Server && !m.Server
			if !ok || demoted || m.PublicKey != c.by.PublicKey && c.by.PublicKey != "" {
				c.end(pando.NotMember(h))
			}
		}
	}
}
