package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/world"
)

// leaderTTL bounds how long a role stays without a leader after its leader died. etcd's leases are
// whole seconds, and it grants a lease of 1 s as 2 s.
const leaderTTL = 3 * time.Second

// resignWaitMax bounds the call that revokes a leader's lease.
const resignWaitMax = 500 * time.Millisecond

// Lead waits until candidate is the one leader of a role. If the holder is candidate's own former
// life, Lead takes over at once. Leadership lasts until ctx ends, the lease is lost, or the
// registry is closed. When ctx ends, the role is free at once.
func (r *Registry) Lead(
	ctx context.Context, role, candidate string,
) (pando.Fence, <-chan struct{}, error) {
	k := pando.LeaderKey(role)
	value, err := world.Encode(candidate)
	if err != nil {
		return pando.Fence{}, nil, err
	}
	l, err := r.grant(ctx, leaderTTL)
	if err != nil {
		return pando.Fence{}, nil, fmt.Errorf("lead %s: %w", role, err)
	}
	f, err := r.win(ctx, k, string(value), l)
	if err != nil {
		l.giveUp()
		return pando.Fence{}, nil, fmt.Errorf("lead %s: %w", role, err)
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		l.hold(ctx, f)
		l.giveUp()
	}()
	return f, lost, nil
}

// win creates the leader's key as soon as the key is free.
func (r *Registry) win(
	ctx context.Context, k pando.Key, value string, l *lease,
) (pando.Fence, error) {
	for {
		call, cancel := bounded(ctx)
		resp, err := r.client.Txn(call).
			If(clientv3.Compare(clientv3.CreateRevision(string(k)), "=", 0)).
			Then(clientv3.OpPut(string(k), value, clientv3.WithLease(l.id))).
			Else(clientv3.OpGet(string(k))).
			Commit()
		if err = sentinel(call, err); err != nil {
			cancel()
			return pando.Fence{}, err
		}
		cancel()
		if resp.Succeeded {
			return pando.Fence{Key: k, Created: pando.StoreRevision(resp.Header.Revision)}, nil
		}
		holder := resp.Responses[0].GetResponseRange().Kvs[0]
		if string(holder.Value) == value || r.isFirst() {
			// The candidate's former life ended without revoking its lease, or the store has a new
			// leader: the holder's server is probably lost. Do not wait for the lease; the fence of the
			// holder ends here.
			if err := r.succeed(ctx, holder); err != nil {
				return pando.Fence{}, err
			}
			continue
		}
		if err := l.await(ctx, holder, resp.Header.Revision, r.isFirst); err != nil {
			return pando.Fence{}, err
		}
	}
}

// succeed deletes a holder's key, if the holder is still the same.
func (r *Registry) succeed(ctx context.Context, holder *mvccpb.KeyValue) error {
	call, cancel := bounded(ctx)
	defer cancel()
	_, err := r.client.Txn(call).
		If(clientv3.Compare(clientv3.CreateRevision(string(holder.Key)), "=", holder.CreateRevision)).
		Then(clientv3.OpDelete(string(holder.Key))).
		Commit()
	return sentinel(call, err)
}

// Join writes the host's record under a lease of ttl. It keeps the lease alive until ctx ends, the
// lease is lost, or another agent of the same host joins. The fence is a separate key, so that a
// takeover never makes the host look gone. The record of a host that disappears is deleted after
// ttl.
func (r *Registry) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	value, err := world.Encode(h)
	if err != nil {
		return pando.Fence{}, nil, err
	}
	l, err := r.grant(ctx, ttl)
	if err != nil {
		return pando.Fence{}, nil, fmt.Errorf("join host %s: %w", h.Name, err)
	}
	f, err := r.takeOver(ctx, h, string(value), l)
	if err != nil {
		l.giveUp()
		return pando.Fence{}, nil, fmt.Errorf("join host %s: %w", h.Name, err)
	}
	r.mu.Lock()
	r.leases[f] = l.id
	r.mu.Unlock()
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		l.hold(ctx, f)
		l.stop()
		r.mu.Lock()
		delete(r.leases, f)
		r.mu.Unlock()
	}()
	return f, lost, nil
}

// takeOver ends the epoch of a former agent and begins a new one. It needs two steps, since etcd
// refuses to delete and create a key in one transaction. An agent that joins in between is
// overtaken in turn.
func (r *Registry) takeOver(
	ctx context.Context, h pando.Host, value string, l *lease,
) (pando.Fence, error) {
	epoch := string(pando.LeaderKey("host-" + string(h.Name)))
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		if _, err := r.client.Delete(ctx, epoch); err != nil {
			return pando.Fence{}, sentinel(ctx, err)
		}
		resp, err := r.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(epoch), "=", 0)).
			Then(clientv3.OpPut(epoch, value, clientv3.WithLease(l.id)),
				clientv3.OpPut(string(h.Key()), value, clientv3.WithLease(l.id))).
			Commit()
		if err != nil {
			return pando.Fence{}, sentinel(ctx, err)
		}
		if resp.Succeeded {
			return pando.Fence{Key: pando.Key(epoch),
				Created: pando.StoreRevision(resp.Header.Revision)}, nil
		}
	}
}

func (r *Registry) leaseOf(f pando.Fence) (clientv3.LeaseID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, ok := r.leases[f]
	return id, ok
}

// lease is one etcd lease, kept alive until stop.
type lease struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	alive  <-chan struct{} // closes when the lease is lost
	stop   context.CancelFunc
	apart  func(context.Context) context.Context // of a watch: see Registry.streamed
}

func (r *Registry) grant(ctx context.Context, ttl time.Duration) (*lease, error) {
	if err := r.guard.check(); err != nil {
		return nil, err
	}
	call, cancel := bounded(ctx)
	defer cancel()
	seconds := int64((ttl + time.Second - 1) / time.Second)
	granted, err := r.client.Grant(call, max(1, seconds))
	if err != nil {
		return nil, sentinel(call, err)
	}
	// Keep-alives outlive ctx: a leader needs its lease until giveUp revokes it.
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &lease{
		client: r.client, id: granted.ID, stop: stop, apart: r.streamed,
		alive: renewal(keep, time.Duration(granted.TTL)*time.Second, r.renews(granted.ID)),
	}, nil
}

// giveUp revokes the lease now, with every key under it.
func (l *lease) giveUp() {
	defer l.stop()
	ctx, cancel := context.WithTimeout(context.Background(), resignWaitMax)
	defer cancel()
	// A failure does no harm: the lease expires by itself.
	_, _ = l.client.Revoke(ctx, l.id)
}

var errLeaseLost = errors.New("the lease ended while waiting")

// isFirst reports whether this process has the leading one of several servers.
func (r *Registry) isFirst() bool { return r.first != nil && r.first() }

// firstLook is the time between two questions whether this server leads the others.
const firstLook = 100 * time.Millisecond

// await returns once the holder's key is deleted, or this server is the first.
func (l *lease) await(
	ctx context.Context, holder *mvccpb.KeyValue, seen int64, first func() bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := time.NewTicker(firstLook)
	defer t.Stop()
	gone := l.client.Watch(l.apart(clientv3.WithRequireLeader(ctx)), string(holder.Key),
		clientv3.WithRev(seen+1), clientv3.WithFilterPut())
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			if first() {
				return nil
			}
		case <-l.alive:
			return fmt.Errorf("the store is %w: %w", pando.ErrUnavailable, errLeaseLost)
		case resp, ok := <-gone:
			if !ok {
				return fmt.Errorf("the store is %w", pando.ErrUnavailable)
			}
			if resp.Err() != nil || len(resp.Events) > 0 {
				return nil // the next attempt to win shows the current holder
			}
		}
	}
}

// hold returns once the lease or the fence is lost, or ctx ends.
func (l *lease) hold(ctx context.Context, f pando.Fence) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := int64(f.Created)
	watch := func() clientv3.WatchChan {
		return l.client.Watch(l.apart(ctx), string(f.Key), clientv3.WithRev(seen+1),
			clientv3.WithFilterPut())
	}
	gone, wait := watch(), holdWait
	for {
		var again <-chan time.Time
		select {
		case <-ctx.Done():
			return
		case <-l.alive:
			return
		case resp, ok := <-gone:
			switch {
			case len(resp.Events) > 0:
				return
			case ok && resp.Err() == nil:
				continue
			}
			// A watch that ends is no lost lease. A server that leaves the cluster ends its watches,
			// and the next one goes to another server.
			seen = max(seen, resp.CompactRevision)
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.client.Ctx().Done(): // the registry is closed
			return
		case <-l.alive:
			return
		case <-again:
		}
		if !l.stands(ctx, f) {
			return
		}
		gone, wait = watch(), min(2*wait, holdWaitMax)
	}
}

// The wait after the end of a watch of a fence. It doubles with each.
const (
	holdWait    = 50 * time.Millisecond
	holdWaitMax = time.Second
)

// stands reports whether the fence is still the same creation. It returns true if the store does
// not answer: a lost lease ends hold anyway.
func (l *lease) stands(ctx context.Context, f pando.Fence) bool {
	ctx, cancel := context.WithTimeout(ctx, holdWaitMax)
	defer cancel()
	resp, err := l.client.Get(ctx, string(f.Key), clientv3.WithKeysOnly())
	return err != nil || len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == int64(f.Created)
}
