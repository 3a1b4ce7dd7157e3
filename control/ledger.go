package control

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// ledger is the transaction of one decision in the making. It reads the world, and it records puts,
// deletes, their conditions, decisions and the next look. It has no rule: it never chooses a
// number, a host or an instance.
type ledger struct {
	w         *world.World
	now       time.Time
	ids       pando.IDs
	before    world.Versioned[pando.Service]
	svc       pando.Service
	keeper    pando.Keeper // of its state on several hosts; zero Host: none
	crew      *crew
	parts     map[pando.InstanceID]pando.Instance // instances of its runs
	decisions []pando.Decision                    // about the service, as stored
	intents   []pando.Intent                      // of the service, as stored, with the asks
	puts      map[pando.Key]pando.Stored
	deletes   []pando.Key
	conds     map[pando.Key]pando.Condition
	wake      time.Time
	forgotten bool // the service's records are deleted, all or the next part of them
	starts    bool // an instance is placed
}

func newLedger(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs) (*ledger, bool) {
	svc, ok := w.Services[s]
	if !ok {
		return nil, false
	}
	return &ledger{
		w: w, now: now, ids: ids, before: svc, svc: svc.V, keeper: w.Keepers[s].V,
		crew: newCrew(w.Of(s)), parts: partsOf(world.RunsOf(w, s)),
		decisions: w.DecisionsOf(s), intents: w.IntentsOf(s),
		puts: map[pando.Key]pando.Stored{}, conds: map[pando.Key]pando.Condition{},
	}, true
}

// addAsks adds the asks that the store does not have, in the order in which they came: their names
// are the times of their hosts. The decision fails with a conflict if an ask is written before it.
func (l *ledger) addAsks(asks []pando.Intent) {
	for _, i := range asks {
		_, written := l.w.Intents[i.ID]
		// An asker sends the same ask again after its connection broke.
		if _, added := l.conds[i.Key()]; written || added {
			continue
		}
		l.intents = append(l.intents, i)
		l.conds[i.Key()] = pando.Condition{Key: i.Key()}
	}
}

// txn returns the transaction. Every overwrite is conditioned on the version that the ledger read.
func (l *ledger) txn() pando.Txn {
	// A decision that places an instance also writes the service's record. Otherwise two unaware
	// decisions could fill the same gap. They could be those of a leader and its successor, or two of
	// one leader after a commit without an answer. With the write, the second one conflicts.
	if !l.forgotten && (l.starts || !equal(l.svc, l.before.V)) {
		l.puts[l.svc.Key()] = l.svc
		l.conds[l.svc.Key()] = l.before.If()
	}
	l.putEndpoints()
	t := pando.Txn{Delete: l.deletes}
	for _, k := range slices.Sorted(maps.Keys(l.puts)) {
		t.Put = append(t.Put, l.puts[k])
	}
	for _, k := range slices.Sorted(maps.Keys(l.conds)) {
		t.If = append(t.If, l.conds[k])
	}
	return t
}

func equal(a, b pando.Service) bool {
	x, errA := world.Encode(a)
	y, errB := world.Encode(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// putEndpoints writes the compact record of the service, if this decision or an agent's step has
// changed it.
func (l *ledger) putEndpoints() {
	if l.forgotten || !l.svc.VIP4.IsValid() {
		return
	}
	was := l.w.Endpoints[l.svc.ServiceKey]
	now := pando.EndpointsOf(l.svc, l.newest(), l.seated())
	now.Secrets = newestSecret(l.w, l.newest())
	if was.Modified > 0 && equal(was.V.Service, now.Service) && was.V.Scale == now.Scale &&
		was.V.Balance == now.Balance && was.V.Secrets == now.Secrets &&
		slices.Equal(was.V.Ports, now.Ports) && slices.Equal(was.V.Hosts, now.Hosts) &&
		slices.Equal(was.V.Seats, now.Seats) && slices.Equal(was.V.Names, now.Names) {
		return
	}
	l.puts[now.Key()] = now
	l.conds[now.Key()] = pando.Condition{Key: now.Key(), Modified: was.Modified}
}

// operationsMax bounds a decision, which starts nothing new after this many writes. The store
// refuses more than 1,024 operations in one transaction, at every attempt. The next decision
// follows as soon as this part is written.
const operationsMax = 200

// full reports whether the decision is large enough. It then schedules the rest for an immediate
// look.
func (l *ledger) full() bool {
	if len(l.puts)+len(l.deletes) < operationsMax {
		return false
	}
	l.lookAgain(l.now)
	return true
}

func (l *ledger) lookAgain(at time.Time) {
	if !at.IsZero() && (l.wake.IsZero() || at.Before(l.wake)) {
		l.wake = at
	}
}

// record adds a decision of control.
func (l *ledger) record(
	kind pando.DecisionKind, i pando.InstanceID, reason string, inputs map[string]float64,
	lines ...string,
) {
	v := pando.Decision{
		ID: l.ids.Sequential(l.now), Service: l.svc.ServiceKey, Instance: i, Kind: kind,
		By: self, Reason: reason, Inputs: inputs, Lines: lines, At: l.now,
	}
	l.puts[v.Key()] = v
}

func (l *ledger) putIntent(i pando.Intent) {
	if known, ok := l.w.Intents[i.ID]; ok {
		l.conds[i.Key()] = known.If()
	}
	l.puts[i.Key()] = i
}

func (l *ledger) putInstance(i pando.Instance) {
	// A new instance must have a free name.
	l.conds[i.Key()] = pando.Condition{Key: i.Key(), Modified: l.w.Instances[i.ID].Modified}
	l.puts[i.Key()] = i
	l.crew.put(i)
}

// dropInstances deletes the records of instances, as many as fit.
func (l *ledger) dropInstances(ids []pando.InstanceID) {
	dropped := map[pando.InstanceID]bool{}
	for _, id := range ids {
		if l.full() {
			break
		}
		v := l.w.Instances[id]
		l.deletes = append(l.deletes, v.V.Key())
		l.conds[v.V.Key()] = v.If()
		dropped[id] = true
	}
	if len(dropped) > 0 {
		l.crew.drop(dropped)
	}
}

// putRevision changes the state of a revision.
func (l *ledger) putRevision(n int, s pando.RevisionState, reason string) {
	r, ok := l.w.Revisions[l.svc.ServiceKey][n]
	if !ok {
		return
	}
	l.conds[r.V.Key()] = r.If()
	r.V.State, r.V.Reason = s, reason
	l.puts[r.V.Key()] = r.V
}

// fresh reports whether this decision created the instance.
func (l *ledger) fresh(id pando.InstanceID) bool {
	_, known := l.w.Instances[id]
	return !known
}

// grant makes a granted intent of control's own.
func (l *ledger) grant(v pando.Verb, reason string) pando.Intent {
	i := pando.Intent{
		ID: pando.IntentID(l.ids.Sequential(l.now)), Service: l.svc.ServiceKey, Verb: v, By: self,
	}
	return i.Become(pando.IntentAsked, l.now, reason).Become(pando.IntentGranted, l.now, reason)
}

// takeOut makes an instance drain. The halt intent is granted already.
func (l *ledger) takeOut(i pando.Instance, halt pando.Intent, walk bool, reason string) {
	halt.Instance, halt.Host = i.ID, i.Host
	l.putIntent(halt.Become(pando.IntentDraining, l.now, reason))
	i.Halt, i.Walk, i.EndNow = halt.ID, walk, l.svc.EndNow
	l.putInstance(i.Become(pando.PhaseDraining, l.now, reason))
}

// drain takes an instance out on control's own behalf. It leaves instances that this decision has
// placed to the next decision.
func (l *ledger) drain(id pando.InstanceID, reason string) {
	if i, ok := l.crew.get(id); ok && !l.fresh(id) {
		l.takeOut(i, l.grant(pando.VerbHalt, reason), true, reason)
	}
}

// forget deletes the records of a service without instances, the oldest of its history first. The
// service's own record is deleted last. Until then a deploy is refused, and a new leader continues
// here.
func (l *ledger) forget() {
	k := l.svc.ServiceKey
	clear(l.puts) // drops pending writes to records that are deleted now
	l.forgotten = true
	history := make([]pando.Key, 0, len(l.intents)+len(l.decisions))
	for _, i := range l.intents {
		history = append(history, i.Key())
	}
	for _, v := range l.decisions {
		history = append(history, v.Key())
	}
	for _, n := range slices.Sorted(maps.Keys(l.w.Revisions[k])) {
		history = append(history, l.w.Revisions[k][n].V.Key())
	}
	for _, one := range history {
		if l.full() {
			return
		}
		l.deletes = append(l.deletes, one)
	}
	l.deletes = append(l.deletes, l.svc.Key())
	l.conds[l.svc.Key()] = l.before.If()
	if e, ok := l.w.Endpoints[k]; ok {
		l.deletes = append(l.deletes, e.V.Key())
	}
	l.keepVolumes()
	l.retireVIP()
	if head, ok := l.w.Heads[k]; ok && l.svc.Purge {
		l.deletes = append(l.deletes, head.V.Key())
	}
	if keeper, ok := l.w.Keepers[k]; ok && l.svc.Purge {
		l.deletes = append(l.deletes, keeper.V.Key())
	}
}

// serving returns the revision of a new instance outside a rollout.
func (l *ledger) serving() int { return cmp.Or(l.svc.Current, l.svc.Target) }

// rolling reports whether a revision takes over from another one.
func (l *ledger) rolling() bool { return l.svc.Target != l.svc.Current && l.svc.Current != 0 }

func (l *ledger) spec(revision int) (pando.Spec, bool) {
	return l.w.SpecOf(l.svc.ServiceKey, revision)
}

// newest returns the spec that bounds the service: the target's, as the operator last deployed it.
func (l *ledger) newest() pando.Spec {
	s, _ := l.spec(l.svc.Target)
	return s
}
