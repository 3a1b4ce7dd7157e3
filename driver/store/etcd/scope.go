package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"pando.run/pando"
)

// shared are the kinds that every member reads whole. Their records have no spec, no environment
// and no key.
var shared = map[pando.Kind]bool{
	pando.KindEndpoints: true, pando.KindService: true, pando.KindHead: true, pando.KindHost: true,
	pando.KindMember: true, pando.KindCluster: true, pando.KindLeader: true, pando.KindKeeper: true,
}

// scope is the part of the store that one read of a member may concern.
type scope struct {
	prefix pando.Key
	// of is the service that the member must have a part in. Zero: the member may always read the
	// prefix.
	of pando.ServiceKey
}

// bound reports whether the right to read ends and begins with the service's presence on the host.
func (s scope) bound() bool { return s.of != pando.ServiceKey{} }

// scopeOf returns the scope of a read from a key to an end, in etcd's form of both, by member h. It
// returns an error for a read that crosses scopes.
func scopeOf(h pando.HostName, from, end []byte) (scope, error) {
	s, ok := scopeAt(h, pando.Key(from))
	switch {
	case !ok:
		return s, fmt.Errorf("read %q: want the records of this host or of one service on it", from)
	case len(end) == 0:
		return s, nil
	case bytes.Equal(end, []byte{0}), string(end) > clientv3.GetPrefixRangeEnd(string(s.prefix)):
		return s, fmt.Errorf("read from %q to %q: want no more than %s*", from, end, s.prefix)
	}
	return s, nil
}

// scopeAt returns the largest scope of a member that has a key.
func scopeAt(h pando.HostName, k pando.Key) (scope, bool) {
	kind := k.Kind()
	if shared[kind] {
		return scope{prefix: pando.Root + pando.Key(kind)}, true
	}
	parts := strings.SplitN(string(k), "/", 7) // "", pando, kind, tenant, service, host, id
	if len(parts) < 6 || parts[3] == "" || parts[4] == "" {
		return scope{}, false
	}
	s := pando.ServiceKey{Tenant: pando.Tenant(parts[3]), Name: pando.ServiceName(parts[4])}
	switch kind {
	case pando.KindInstance:
		own := pando.InstancesOn(s, h)
		return scope{prefix: own}, strings.HasPrefix(string(k), string(own))
	case pando.KindRevision:
		return scope{prefix: pando.RevisionsOf(s), of: s}, true
	case pando.KindIntent:
		return scope{prefix: pando.Intent{Service: s}.Key(), of: s}, true
	}
	return scope{}, false
}

// concerns reports whether a service has a part on a host at a store revision (0: now): an
// instance, its home or its state. After a restore, a host first brings back the records that the
// backup lacks, and reads then. The cost does not depend on the number of services.
func (g gate) concerns(h pando.HostName, s pando.ServiceKey, at int64) (bool, error) {
	there, err := g.store.at(at).any(pando.InstancesOn(s, h))
	if there || err != nil {
		return there, err
	}
	var svc pando.Service
	if _, err := g.store.at(at).read(s.Key(), &svc); err != nil || svc.Home == h {
		return err == nil, err
	}
	var head pando.StateHead
	_, err = g.store.at(at).read(pando.HeadKey(s), &head)
	return err == nil && head.Host == h, err
}

// restored returns the store's record of itself, and whether its restore is recent.
func restored(s *store, clock pando.Clock) (c pando.Cluster, recent bool) {
	at, err := s.read(pando.ClusterKey, &c)
	return c, at != 0 && err == nil && c.Generation >= 2 && clock != nil &&
		!clock.Now().After(c.Restored.Add(pando.AdoptionTime))
}

// withhold empties the answer to a read if the member had no right to it at the revision of the
// answer. The store has applied that revision, so every right that the member has seen is in force.
//
// An answer without records is right for a host that asks too late, or for an earlier build that
// asks for more than it may. Such a host continues.
func (g gate) withhold(m pando.Member, s scope, r *pb.RangeRequest, resp *pb.RangeResponse) error {
	if !s.bound() || resp.Count == 0 && len(resp.Kvs) == 0 {
		return nil
	}
	at := r.Revision
	if at == 0 {
		at = resp.Header.GetRevision()
	}
	may, err := g.concerns(m.Name, s.of, at)
	if err != nil {
		return readError(err)
	}
	if !may {
		g.refusals.withheld(m.Name, string(s.prefix))
		resp.Kvs, resp.Count, resp.More = nil, 0, false
	}
	return nil
}

// mayRead checks the reads and the conditions of a transaction. A condition on a value would be a
// way to guess the value. A read of one key without its value shows which condition failed.
func mayRead(m pando.Member, r *pb.TxnRequest) error {
	for _, c := range r.Compare {
		plain := c.Target == pb.Compare_CREATE || c.Target == pb.Compare_MOD
		if !plain || len(c.RangeEnd) > 0 {
			return fmt.Errorf("a condition on %q: want one on the revision of one key", c.Key)
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			read := op.GetRequestRange()
			if read == nil || read.KeysOnly && len(read.RangeEnd) == 0 {
				continue
			}
			s, err := scopeOf(m.Name, read.Key, read.RangeEnd)
			if err != nil {
				return err
			}
			if s.bound() {
				return fmt.Errorf("read %q in a transaction: want a read of its own", read.Key)
			}
		}
	}
	return nil
}

// readError is the error of a read without a known right.
func readError(err error) error {
	if errors.Is(err, mvcc.ErrCompacted) {
		return rpctypes.ErrGRPCCompacted // the member reads again, at a newer revision
	}
	return err
}
