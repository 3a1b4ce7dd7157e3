package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"pando.run/pando"
	"pando.run/pando/world"
)

// store reads records for the gate, at a revision. 0: the newest.
type store struct {
	from     reader
	revision int64
}

func (s *store) at(revision int64) *store { return &store{s.from, revision} }

// read decodes a record into v. It returns the revision of the record's last write, or 0 if the
// record does not exist.
func (s *store) read(k pando.Key, v any) (int64, error) {
	got, err := s.from.get([]byte(k), nil, 0, s.revision)
	if err != nil || len(got) == 0 {
		return 0, err
	}
	return got[0].ModRevision, world.Decode(record(got[0]), v)
}

// any reports whether a key with this prefix exists.
func (s *store) any(prefix pando.Key) (bool, error) {
	end := append([]byte(prefix[:len(prefix)-1]), prefix[len(prefix)-1]+1)
	got, err := s.from.get([]byte(prefix), end, 1, s.revision)
	return err == nil && len(got) > 0, err
}

// valueBytesMax bounds one value in a member's write. The longest record of an instance has 20
// lines of its log.
const valueBytesMax = 128 << 10

// rights checks one transaction of a member. Each stored record that allowed a write becomes a
// condition of the transaction.
type rights struct {
	ctx    context.Context
	member pando.Member
	store  *store
	leases *leases
	clock  pando.Clock
	asked  []*pb.Compare // the conditions of the member itself
	conds  []*pb.Compare
}

func (g gate) rights(ctx context.Context, m pando.Member) *rights {
	return &rights{ctx: ctx, member: m, store: g.store, leases: g.leases,
		clock: g.members.Clock}
}

// check returns the reason to refuse a transaction, or nil. It then adds the conditions to r.
func (w *rights) check(r *pb.TxnRequest) error {
	w.asked = r.Compare
	for _, op := range r.Success {
		var k pando.Key
		var err error
		switch {
		case op.GetRequestRange() != nil:
			continue
		case op.GetRequestPut() != nil:
			k = pando.Key(bytes.Clone(op.GetRequestPut().Key))
			err = w.mayPut(k, op.GetRequestPut())
		case op.GetRequestDeleteRange() != nil && len(op.GetRequestDeleteRange().RangeEnd) == 0:
			k = pando.Key(bytes.Clone(op.GetRequestDeleteRange().Key))
			if !owns(w.member.Name, k) {
				err = errNotOwn
			}
		default:
			err = errNotOwn
		}
		if err != nil {
			return refused(w.member.Name, fmt.Sprintf("write %s: %v", k, err))
		}
	}
	r.Compare = append(r.Compare, w.conds...)
	return nil
}

var (
	errNotOwn  = fmt.Errorf("it is of another host, or of control")
	errForeign = fmt.Errorf("its value is that of another record")
	errSince   = fmt.Errorf("it is about no instance of this host")
	errAnswer  = errors.New("only control answers an ask")
)

// owns reports whether a key belongs to this host alone.
func owns(h pando.HostName, k pando.Key) bool {
	switch k.Kind() {
	case pando.KindHost:
		return k == pando.HostKey(h)
	case pando.KindLeader:
		return k == pando.LeaderKey("host-"+string(h))
	case pando.KindInstance:
		parts := strings.Split(string(k), "/") // "", pando, instance, tenant, service, host, id
		return len(parts) == 7 && parts[5] == string(h)
	}
	return false
}

func (w *rights) mayPut(k pando.Key, p *pb.PutRequest) error {
	if n := len(p.Value); n > valueBytesMax {
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed",
			pando.ErrTooLarge, n, valueBytesMax)
	}
	r := pando.Record{Key: k, Value: p.Value}
	switch k.Kind() {
	case pando.KindHost, pando.KindLeader: // deleted with the agent's lease
		if !owns(w.member.Name, k) {
			return errNotOwn
		}
		if p.Lease == 0 {
			return fmt.Errorf("it has no lease")
		}
		if err := w.leases.own(w.ctx, w.member.Name, p.Lease); err != nil {
			return err
		}
		return w.host(r)
	case pando.KindInstance:
		if !owns(w.member.Name, k) {
			return errNotOwn
		}
		return put(w, r, w.instance)
	case pando.KindIntent:
		return put(w, r, w.intent)
	case pando.KindDecision:
		return put(w, r, w.decision)
	case pando.KindHead:
		return put(w, r, w.head)
	case pando.KindKeeper:
		return put(w, r, w.keeper)
	}
	return errNotOwn
}

// put checks the new value against the stored one by a rule. The transaction then depends on the
// stored one.
func put[T pando.Stored](
	w *rights, r pando.Record, rule func(next, now T, there bool) error,
) error {
	var next, now T
	if err := world.Decode(r, &next); err != nil {
		return err
	}
	if next.Key() != r.Key {
		return errForeign
	}
	at, err := w.store.read(r.Key, &now)
	if err != nil {
		return err
	}
	w.conds = append(w.conds, &pb.Compare{
		Key: []byte(r.Key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: at},
	})
	if err = rule(next, now, at != 0); err != nil && w.late(r.Key, at) {
		return nil // its own condition fails: it learns of the conflict
	}
	return err
}

// late reports whether a condition of the member expects another revision of a record.
func (w *rights) late(k pando.Key, at int64) bool {
	return slices.ContainsFunc(w.asked, func(c *pb.Compare) bool {
		return pando.Key(c.Key) == k && len(c.RangeEnd) == 0 && c.Target == pb.Compare_MOD &&
			c.Result == pb.Compare_EQUAL && c.GetModRevision() != at
	})
}

// host checks a host's record, which is also the value of its epoch.
func (w *rights) host(r pando.Record) error {
	var h pando.Host
	if err := world.Decode(r, &h); err != nil {
		return err
	}
	if strings.HasPrefix(h.Endpoint, "unix:") {
		return fmt.Errorf("other hosts cannot reach its agent at %s: start it with --listen ADDRESS",
			h.Endpoint)
	}
	return w.member.Vouches(h)
}

// instance checks an instance's record. Control creates the record; the host then updates it.
func (w *rights) instance(next, now pando.Instance, there bool) error {
	v4, v6 := pando.InstanceRange(w.member.Slot)
	switch {
	case !there && !w.lost(next):
		return fmt.Errorf("control has placed no such instance")
	case there && (next.Ordinal != now.Ordinal || next.Start != now.Start):
		return fmt.Errorf("ordinal %d, order %q: want %d and %q, as control wrote them",
			next.Ordinal, next.Start, now.Ordinal, now.Start)
	case there && !reflect.DeepEqual(next.Run, now.Run):
		return fmt.Errorf("its part in a run is not as control wrote it")
	case there && now.From != "" && next.From != now.From:
		return fmt.Errorf("it continues another snapshot than control wrote")
	case there && next.Revision != now.Revision, !next.Phase.Known():
		return fmt.Errorf("revision %d, phase %q: want revision %d and a phase that there is",
			next.Revision, next.Phase, now.Revision)
	case there && next.SpecHash != now.SpecHash && next.SpecHash != "": // a former build drops it
		return fmt.Errorf("it runs another spec than control wrote")
	case next.IP4.IsValid() && !v4.Contains(next.IP4), next.IP6.IsValid() && !v6.Contains(next.IP6):
		return fmt.Errorf("the addresses %s and %s: want one of %s and of %s", next.IP4, next.IP6, v4, v6)
	}
	return nil
}

// lost reports whether a restored backup may lack the record of an instance: the restore is recent,
// the instance is older than the restore, and its service has its revision.
// The member proves by the hash that it knows the spec, because the record gives it the right to read.
func (w *rights) lost(i pando.Instance) bool {
	c, recent := restored(w.store, w.clock)
	if !recent || !i.Born.Before(c.Restored) {
		return false
	}
	var r pando.Revision
	service, err := w.store.read(i.Service.Key(), &pando.Service{})
	revision, err2 := w.store.read(pando.RevisionKey(i.Service, i.Revision), &r)
	return service != 0 && revision != 0 && err == nil && err2 == nil &&
		i.SpecHash == r.Spec.Hash()
}

// has reports whether an instance of a service is on this host.
func (w *rights) has(s pando.ServiceKey, i pando.InstanceID) bool {
	at, err := w.store.read(pando.Instance{Service: s, Host: w.member.Name, ID: i}.Key(),
		&pando.Instance{})
	return i != "" && err == nil && at != 0
}

// intent checks an intent. An instance of this host must ask it. A later step must be about an
// instance of this host.
func (w *rights) intent(next, now pando.Intent, there bool) error {
	if !there {
		asks := next.By.Kind == pando.AskerInstance && next.Host == w.member.Name && w.has(next.Service,
			pando.InstanceID(next.By.Name))
		if next.By.Kind == pando.AskerTraffic {
			return w.knock(next)
		}
		about := next.Verb == pando.VerbReplicate || string(next.Instance) == next.By.Name
		begins := next.State == pando.IntentAsked ||
			next.Verb == pando.VerbDie && next.State == pando.IntentMerged
		if !asks || !about || !begins {
			return errSince
		}
		return ownStart(next)
	}
	if next.Verb != now.Verb || next.By != now.By || next.Instance != now.Instance ||
		next.Host != now.Host || next.From != now.From {
		return fmt.Errorf("it was asked otherwise: by %s, to %s %s", now.By, now.Verb, now.Instance)
	}
	if now.Host != w.member.Name || !w.has(now.Service, now.Instance) {
		return errSince
	}
	if !mayFollow(now.State, next.State) {
		return fmt.Errorf("%w: %s cannot become %s by its host", errAnswer, now.State, next.State)
	}
	return nil
}

// knock checks an ask by traffic: any host may get the first packet of a service. Control grants it
// if the service has no instance and scales from zero.
func (w *rights) knock(next pando.Intent) error {
	if next.Host != w.member.Name || next.By.Name != string(w.member.Name) ||
		next.Verb != pando.VerbReplicate || next.State != pando.IntentAsked {
		return errSince
	}
	return ownStart(next)
}

// ownStart refuses an ask for an instance that continues a snapshot. Only an operator restores one.
func ownStart(next pando.Intent) error {
	if next.From != "" {
		return errors.New("only an operator starts an instance from a snapshot")
	}
	return nil
}

// mayFollow reports whether a host may move an intent between two states: by the steps of an
// instance's life. Answers to asks are control's.
func mayFollow(was, next pando.IntentState) bool {
	if was == next {
		return true
	}
	for _, step := range []pando.IntentState{pando.IntentStarting, pando.IntentReady,
		pando.IntentInRotation, pando.IntentMerged, pando.IntentDead, pando.IntentFailed} {
		if was.May(step) && mayFollow(step, next) {
			return true
		}
	}
	return false
}

// decision checks a decision: it must be this agent's evidence about an instance of this host, of a
// kind that agents write. The history of a service shows the other kinds as acts of operators and
// of control.
func (w *rights) decision(next, now pando.Decision, there bool) error {
	own := pando.Asker{Kind: pando.AskerControl, Name: "agent " + string(w.member.Name)}
	switch {
	case !w.has(next.Service, next.Instance) || next.By != own:
		return errSince
	case !next.Kind.OfAgents():
		return fmt.Errorf("an agent writes no decision of kind %q", next.Kind)
	case there && (next.By != now.By || next.Kind != now.Kind || next.Instance != now.Instance):
		return errSince
	}
	return nil
}

// keeper checks the keeper of a state. Its host alone may move a joining host to the copies, or
// report a silent one. The rest is control's.
func (w *rights) keeper(next, now pando.Keeper, there bool) error {
	if !there || now.Host != w.member.Name {
		return errNotOwn
	}
	joined := slices.DeleteFunc(slices.Clone(now.Joining),
		func(h pando.HostName) bool { return slices.Contains(next.Joining, h) })
	if next.Host != now.Host || next.Want != now.Want || next.Epoch != now.Epoch+1 ||
		!maps.Equal(next.Since, now.Since) ||
		!slices.Equal(next.Copies, append(slices.Clone(now.Copies), joined...)) ||
		len(next.Joining)+len(joined) != len(now.Joining) {
		return errors.New("only control chooses the hosts of a state")
	}
	return nil
}

// shared checks the head of a state on several hosts: any host with an instance or a copy moves it,
// and it names the keeper.
func (w *rights) shared(next, now pando.StateHead, k pando.Keeper) error {
	mine := pando.Instance{Service: next.Service, Host: w.member.Name}.Key()
	switch {
	case next.Host != k.Host:
		return fmt.Errorf("it names host %s, and %s keeps that state", next.Host, k.Host)
	case next.Merges <= now.Merges:
		return fmt.Errorf("its number of merges falls from %d to %d", now.Merges, next.Merges)
	case k.Holds(w.member.Name):
		return nil
	}
	if there, err := w.store.any(mine); there || err != nil {
		return err
	}
	return errSince
}

// head checks a state head. Only the host with the state's objects moves it. The service's home, or
// a host with an instance, may write the first one.
func (w *rights) head(next, now pando.StateHead, there bool) error {
	var k pando.Keeper
	if at, err := w.store.read(pando.KeeperKey(next.Service), &k); err != nil || at != 0 {
		return errors.Join(err, w.shared(next, now, k))
	}
	switch {
	case next.Host != w.member.Name:
		return fmt.Errorf("it names host %s", next.Host)
	case there && now.Host == w.member.Name:
		return nil
	case there:
		return fmt.Errorf("host %s keeps that state", now.Host)
	}
	var s pando.Service
	if _, err := w.store.read(next.Service.Key(), &s); err == nil && s.Home == w.member.Name {
		return nil
	}
	mine := pando.Instance{Service: next.Service, Host: w.member.Name}.Key() // ends with a slash
	if there, err := w.store.any(mine); there || err != nil {
		return err
	}
	return errSince
}
