package decide

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// addAsks adds the asks that the store does not have, in the order in which they came: their names
// are the times of their hosts. The decision fails with a conflict if an ask is written before it.
func (d *Draft) addAsks(asks []pando.Intent) {
	for _, i := range asks {
		_, written := d.w.Intents[i.ID]
		// An asker sends the same ask again after its connection broke.
		if _, added := d.conds[i.Key()]; written || added {
			continue
		}
		d.intents = append(d.intents, i)
		d.conds[i.Key()] = pando.Condition{Key: i.Key()}
	}
}

// txn returns the transaction. Every overwrite is conditioned on the version that the decision read.
func (d *Draft) txn() pando.Txn {
	// A decision that places an instance also writes the service's record. Otherwise two unaware
	// decisions could fill the same gap. They could be those of a leader and its successor, or two of
	// one leader after a commit without an answer. With the write, the second one conflicts.
	if !d.forgotten && (d.starts || !equal(d.svc, d.before.V)) {
		d.puts[d.svc.Key()] = d.svc
		d.conds[d.svc.Key()] = d.before.If()
	}
	d.putEndpoints()
	t := pando.Txn{Delete: d.deletes}
	for _, k := range slices.Sorted(maps.Keys(d.puts)) {
		t.Put = append(t.Put, d.puts[k])
	}
	for _, k := range slices.Sorted(maps.Keys(d.conds)) {
		t.If = append(t.If, d.conds[k])
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
func (d *Draft) putEndpoints() {
	if d.forgotten || !d.svc.VIP4.IsValid() {
		return
	}
	was := d.w.Endpoints[d.svc.ServiceKey]
	now := pando.EndpointsOf(d.svc, d.newest(), d.seated())
	now.Secrets = NewestSecret(d.w, d.newest())
	if was.Modified > 0 && equal(was.V.Service, now.Service) && was.V.Scale == now.Scale &&
		was.V.Balance == now.Balance && was.V.Secrets == now.Secrets &&
		slices.Equal(was.V.Ports, now.Ports) && slices.Equal(was.V.Hosts, now.Hosts) &&
		slices.Equal(was.V.Seats, now.Seats) && slices.Equal(was.V.Names, now.Names) {
		return
	}
	d.puts[now.Key()] = now
	d.conds[now.Key()] = pando.Condition{Key: now.Key(), Modified: was.Modified}
}

// OperationsMax bounds a decision, which starts nothing new after this many writes. The store
// refuses more than 1,024 operations in one transaction, at every attempt. The next decision
// follows as soon as this part is written.
const OperationsMax = 200

// full reports whether the decision is large enough. It then schedules the rest for an immediate
// look.
func (d *Draft) full() bool {
	if len(d.puts)+len(d.deletes) < OperationsMax {
		return false
	}
	d.lookAgain(d.now)
	return true
}

func (d *Draft) lookAgain(at time.Time) {
	if !at.IsZero() && (d.wake.IsZero() || at.Before(d.wake)) {
		d.wake = at
	}
}

// record adds a decision of control.
func (d *Draft) record(
	kind pando.DecisionKind, i pando.InstanceID, reason string, inputs map[string]float64,
	lines ...string,
) {
	v := pando.Decision{
		ID: d.ids.Sequential(d.now), Service: d.svc.ServiceKey, Instance: i, Kind: kind,
		By: Self, Reason: reason, Inputs: inputs, Lines: lines, At: d.now,
	}
	d.puts[v.Key()] = v
}

func (d *Draft) putIntent(i pando.Intent) {
	if known, ok := d.w.Intents[i.ID]; ok {
		d.conds[i.Key()] = known.If()
	}
	d.puts[i.Key()] = i
}

func (d *Draft) putInstance(i pando.Instance) {
	// A new instance must have a free name.
	d.conds[i.Key()] = pando.Condition{Key: i.Key(), Modified: d.w.Instances[i.ID].Modified}
	d.puts[i.Key()] = i
	d.crew.put(i)
}

// dropInstances deletes the records of instances, as many as fit.
func (d *Draft) dropInstances(ids []pando.InstanceID) {
	dropped := map[pando.InstanceID]bool{}
	for _, id := range ids {
		if d.full() {
			break
		}
		v := d.w.Instances[id]
		d.deletes = append(d.deletes, v.V.Key())
		d.conds[v.V.Key()] = v.If()
		dropped[id] = true
	}
	if len(dropped) > 0 {
		d.crew.drop(dropped)
	}
}

// putRevision changes the state of a revision.
func (d *Draft) putRevision(n int, s pando.RevisionState, reason string) {
	r, ok := d.w.Revisions[d.svc.ServiceKey][n]
	if !ok {
		return
	}
	d.conds[r.V.Key()] = r.If()
	r.V.State, r.V.Reason = s, reason
	d.puts[r.V.Key()] = r.V
}

// fresh reports whether this decision created the instance.
func (d *Draft) fresh(id pando.InstanceID) bool {
	_, known := d.w.Instances[id]
	return !known
}

// grant makes a granted intent of control's own.
func (d *Draft) grant(v pando.Verb, reason string) pando.Intent {
	i := pando.Intent{
		ID: pando.IntentID(d.ids.Sequential(d.now)), Service: d.svc.ServiceKey, Verb: v, By: Self,
	}
	return i.Become(pando.IntentAsked, d.now, reason).Become(pando.IntentGranted, d.now, reason)
}

// takeOut makes an instance drain. The halt intent is granted already.
func (d *Draft) takeOut(i pando.Instance, halt pando.Intent, walk bool, reason string) {
	halt.Instance, halt.Host = i.ID, i.Host
	d.putIntent(halt.Become(pando.IntentDraining, d.now, reason))
	i.Halt, i.Walk, i.EndNow = halt.ID, walk, d.svc.EndNow
	d.putInstance(i.Become(pando.PhaseDraining, d.now, reason))
}

// drain takes an instance out on control's own behalf. It leaves instances that this decision has
// placed to the next decision.
func (d *Draft) drain(id pando.InstanceID, reason string) {
	if i, ok := d.crew.get(id); ok && !d.fresh(id) {
		d.takeOut(i, d.grant(pando.VerbHalt, reason), true, reason)
	}
}

// forget deletes the records of a service without instances, the oldest of its history first. The
// service's own record is deleted last. Until then a deploy is refused, and a new leader continues
// here.
func (d *Draft) forget() {
	k := d.svc.ServiceKey
	clear(d.puts) // drops pending writes to records that are deleted now
	d.forgotten = true
	history := make([]pando.Key, 0, len(d.intents)+len(d.decisions))
	for _, i := range d.intents {
		history = append(history, i.Key())
	}
	for _, v := range d.decisions {
		history = append(history, v.Key())
	}
	for _, n := range slices.Sorted(maps.Keys(d.w.Revisions[k])) {
		history = append(history, d.w.Revisions[k][n].V.Key())
	}
	for _, one := range history {
		if d.full() {
			return
		}
		d.deletes = append(d.deletes, one)
	}
	d.deletes = append(d.deletes, d.svc.Key())
	d.conds[d.svc.Key()] = d.before.If()
	if e, ok := d.w.Endpoints[k]; ok {
		d.deletes = append(d.deletes, e.V.Key())
	}
	d.keepVolumes()
	d.retireVIP()
	if head, ok := d.w.Heads[k]; ok && d.svc.Purge {
		d.deletes = append(d.deletes, head.V.Key())
	}
	if keeper, ok := d.w.Keepers[k]; ok && d.svc.Purge {
		d.deletes = append(d.deletes, keeper.V.Key())
	}
}

// serving returns the revision of a new instance outside a rollout.
func (d *Draft) serving() int { return cmp.Or(d.svc.Current, d.svc.Target) }

// rolling reports whether a revision takes over from another one.
func (d *Draft) rolling() bool { return d.svc.Target != d.svc.Current && d.svc.Current != 0 }

func (d *Draft) spec(revision int) (pando.Spec, bool) {
	return d.w.SpecOf(d.svc.ServiceKey, revision)
}

// hashOf returns the hash of the spec of a revision.
func (d *Draft) hashOf(revision int) string {
	hash, known := d.hashes[revision]
	if !known {
		if d.hashes == nil {
			d.hashes = map[int]string{}
		}
		s, _ := d.spec(revision)
		hash = s.Hash()
		d.hashes[revision] = hash
	}
	return hash
}

// newest returns the spec that bounds the service: the target's, as the operator last deployed it.
func (d *Draft) newest() pando.Spec {
	s, _ := d.spec(d.svc.Target)
	return s
}

// keepVolumes records the host with the volumes of a service that is removed. A removal that purges
// forgets that host.
func (d *Draft) keepVolumes() {
	known, ok := d.w.Volumes[d.svc.ServiceKey]
	switch {
	case d.svc.Purge && ok:
		d.deletes = append(d.deletes, known.V.Key())
		d.conds[known.V.Key()] = known.If()
	case !d.svc.Purge && (d.svc.Home != "" || d.svc.Roll != nil) && len(d.svc.Sizes) > 0:
		v := pando.VolumeHome{
			Service: d.svc.ServiceKey, Host: d.svc.Home, At: d.now, Roll: d.svc.Roll,
			Sizes: d.svc.Sizes,
		}
		d.conds[v.Key()] = pando.Condition{Key: v.Key(), Modified: known.Modified}
		d.puts[v.Key()] = v
	}
}

// NewestSecret returns the store's revision of the last change among the secrets of a spec, or 0.
func NewestSecret(w *world.World, s pando.Spec) (at pando.StoreRevision) {
	for _, one := range s.StoredSecrets {
		at = max(at, w.Secrets[pando.SecretKey{Tenant: s.Key().Tenant, Name: one.Name}].Modified)
	}
	return at
}

// seated returns every instance of the service, those of its runs last, oldest first.
func (d *Draft) seated() []pando.Instance {
	if len(d.parts) == 0 {
		return d.crew.all
	}
	parts := slices.SortedFunc(maps.Values(d.parts), func(a, b pando.Instance) int {
		return cmp.Or(a.Born.Compare(b.Born), cmp.Compare(a.ID, b.ID))
	})
	return slices.Concat(d.crew.all, parts)
}

// alike returns the revisions of instances that run as those of another revision.
func (d *Draft) alike(revision int) map[int]bool {
	var out map[int]bool
	for n := range d.crew.revisions {
		if n == revision {
			continue
		}
		was, known := d.spec(n)
		if is, ok := d.spec(revision); known && ok && was.RunsAs(is) {
			if out == nil {
				out = map[int]bool{}
			}
			out[n] = true
		}
	}
	return out
}

// QuotaLook is the time between two looks at a quota on which a start waits.
const QuotaLook = 2 * time.Second

// quotaNote is the time between two records of a service that still waits.
const quotaNote = time.Hour
