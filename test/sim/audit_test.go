package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// audit replays every commit of a run and checks it against the rules.
type audit struct {
	t      *testing.T
	world  *world.World
	ended  map[pando.InstanceID]bool // their records are gone
	grants map[pando.ServiceKey][]time.Time
	faults int
	steps  stepsOf // of the intents, if it is not nil
}

func newAudit(t *testing.T) *audit {
	return &audit{t: t, world: world.New(), ended: map[pando.InstanceID]bool{},
		grants: map[pando.ServiceKey][]time.Time{}}
}

func (a *audit) fail(at pando.StoreRevision, format string, args ...any) {
	if a.faults++; a.faults < 20 {
		a.t.Errorf("store revision %d: "+format, append([]any{at}, args...)...)
	}
}

// replay checks commits in order. It decodes each record once.
func (a *audit) replay(history []pando.Batch) {
	for _, b := range history {
		var gone []pando.Record
		var put []pando.Stored
		for _, r := range b.Changes {
			if r.Value == nil {
				a.deleted(r)
				gone = append(gone, r)
				continue
			}
			v, err := world.DecodeAny(r)
			if err != nil {
				a.fail(b.Revision, "%v", err)
				continue
			}
			if v != nil {
				put = append(put, v)
				a.record(b.Revision, v)
			}
		}
		before := a.capacity(a.growing(put))
		if err := a.world.Apply(gone, b.Revision); err != nil {
			a.fail(b.Revision, "%v", err)
		}
		for _, v := range put {
			a.unique(b.Revision, v)
			a.world.Committed(pando.Txn{Put: []pando.Stored{v}}, b.Revision)
		}
		a.bounds(b, before)
	}
}

// record checks a written record against the one before it.
func (a *audit) record(at pando.StoreRevision, v pando.Stored) {
	switch v := v.(type) {
	case pando.Intent:
		a.intent(at, v)
		if a.steps != nil {
			a.steps.note(v)
		}
	case pando.Instance:
		a.instance(at, v)
	case pando.Decision:
		if v.Reason == "" {
			a.fail(at, "decision %s (%s) has no reason", v.ID, v.Kind)
		}
	}
}

// unique checks that no other record has the name of an instance, an intent or a decision.
func (a *audit) unique(at pando.StoreRevision, v pando.Stored) {
	other := v.Key()
	switch v := v.(type) {
	case pando.Instance:
		if was, there := a.world.Instances[v.ID]; there {
			other = was.V.Key()
		}
	case pando.Intent:
		if was, there := a.world.Intents[v.ID]; there {
			other = was.V.Key()
		}
	case pando.Decision:
		if was, there := a.world.Decisions[v.ID]; there {
			other = was.V.Key()
		}
	}
	if other != v.Key() {
		a.fail(at, "record %s has the name of %s", v.Key(), other)
	}
}

func (a *audit) deleted(r pando.Record) {
	if r.Key.Kind() == pando.KindInstance {
		parts := strings.Split(string(r.Key), "/")
		a.ended[pando.InstanceID(parts[len(parts)-1])] = true
	}
}

// intent checks that history only grows, by legal steps with reasons.
func (a *audit) intent(at pando.StoreRevision, v pando.Intent) {
	was := a.world.Intents[v.ID].V.History
	if len(was) > len(v.History) {
		a.fail(at, "intent %s forgot steps: %v became %v", v.ID, was, v.History)
		return
	}
	var state pando.IntentState
	for n, step := range v.History {
		if n < len(was) && was[n] != step && !was[n].At.Equal(step.At) {
			a.fail(at, "intent %s: step %d changed from %v to %v", v.ID, n, was[n], step)
		}
		if state != "" && !state.May(step.State) {
			a.fail(at, "intent %s: %s became %s", v.ID, state, step.State)
		}
		if step.Reason == "" {
			a.fail(at, "intent %s: %s has no reason", v.ID, step.State)
		}
		state = step.State
	}
	if v.State != state {
		a.fail(at, "intent %s is %s, its history ends with %s", v.ID, v.State, state)
	}
	if len(was) < len(v.History) && v.By.Kind != pando.AskerControl && v.Verb == pando.VerbReplicate {
		for _, step := range v.History[len(was):] {
			if step.State == pando.IntentGranted {
				a.granted(at, v, step.At)
			}
		}
	}
}

// granted checks a grant against the budget of its second.
func (a *audit) granted(at pando.StoreRevision, v pando.Intent, when time.Time) {
	spec, ok := a.world.SpecOf(v.Service, a.world.Services[v.Service].V.Target)
	if !ok || spec.Scale.RatePerSecond == 0 {
		return
	}
	recent := []time.Time{when}
	for _, g := range a.grants[v.Service] {
		if when.Sub(g) < time.Second {
			recent = append(recent, g)
		}
	}
	if float64(len(recent)) > max(1, spec.Scale.RatePerSecond) {
		a.fail(at, "%d grants within a second, the budget is %g", len(recent), spec.Scale.RatePerSecond)
	}
	a.grants[v.Service] = recent
}

// instance checks that a record reaches its phase by legal steps. An agent may record several steps
// in one commit.
func (a *audit) instance(at pando.StoreRevision, v pando.Instance) {
	if a.ended[v.ID] {
		a.fail(at, "instance %s came back as %s after its end", v.ID, v.Phase)
	}
	was, ok := a.world.Instances[v.ID]
	switch {
	case !ok && v.Phase != pando.PhasePlaced:
		a.fail(at, "instance %s was born %s", v.ID, v.Phase)
	case ok && was.V.Phase != v.Phase && !reaches(was.V.Phase, v.Phase):
		a.fail(at, "instance %s: %s became %s", v.ID, was.V.Phase, v.Phase)
	case v.Reason == "":
		a.fail(at, "instance %s is %s without a reason", v.ID, v.Phase)
	}
	if !ok && !v.Warm {
		a.alone(at, v)
	}
}

// alone checks that an instance with one writer is born only after the former one of its host has
// gone. Its own revision decides: a rollback from one writer to several is one commit.
func (a *audit) alone(at pando.StoreRevision, v pando.Instance) {
	spec, known := a.world.SpecOf(v.Service, v.Revision)
	if !known || !spec.Single() {
		return
	}
	for _, o := range a.world.On(v.Host) {
		if o.Service == v.Service && !o.Warm {
			a.fail(at, "%s was placed beside %s (%s), and the service has one writer", v.ID, o.ID, o.Phase)
		}
	}
}

func reaches(p, q pando.Phase) bool {
	if p.May(q) {
		return true
	}
	seen := map[pando.Phase]bool{p: true}
	for queue := []pando.Phase{p}; len(queue) > 0; queue = queue[1:] {
		for next := range phases {
			if !seen[next] && queue[0].May(next) {
				if next == q {
					return true
				}
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return false
}

var phases = map[pando.Phase]bool{
	pando.PhasePlaced: true, pando.PhaseStarting: true, pando.PhaseWarm: true, pando.PhaseReady: true,
	pando.PhaseInRotation: true,
	pando.PhaseDraining:   true, pando.PhaseDrained: true, pando.PhaseFailed: true,
	pando.PhaseMerged: true, pando.PhaseDead: true,
}

// growing returns the services to which a commit adds an instance that counts. No other commit
// adds capacity.
func (a *audit) growing(all []pando.Stored) map[pando.ServiceKey]bool {
	out := map[pando.ServiceKey]bool{}
	for _, v := range all {
		if i, ok := v.(pando.Instance); ok && i.Capacity() && !a.world.Instances[i.ID].V.Capacity() {
			out[i.Service] = true
		}
	}
	return out
}

// capacity counts the instances of services.
func (a *audit) capacity(of map[pando.ServiceKey]bool) map[pando.ServiceKey]int {
	out := make(map[pando.ServiceKey]int, len(of))
	for k := range of {
		out[k] = scale.Capacity(a.reachable(k))
	}
	return out
}

// newsMax bounds how long a change of a host may take to reach the leader.
const newsMax = 200 * time.Millisecond

// reachable returns the instances that control had to count when it placed the youngest. It leaves
// out instances of a host that came back at the same moment.
func (a *audit) reachable(k pando.ServiceKey) []pando.Instance {
	all := a.world.Of(k)
	if len(all) == 0 || len(a.world.Hosts) == 0 {
		return all
	}
	youngest := all[len(all)-1].Born
	return slices.DeleteFunc(all, func(i pando.Instance) bool {
		host, alive := a.world.Hosts[i.Host]
		return !alive || youngest.Sub(host.V.Joined) <= newsMax
	})
}

// bounds checks that no commit adds capacity beyond the service's bounds at that moment. Capacity
// that returns with its host, or that exceeds a lowered bound, is no fault: control sheds it.
func (a *audit) bounds(b pando.Batch, before map[pando.ServiceKey]int) {
	for _, r := range b.Changes {
		if r.Key.Kind() == pando.KindHost {
			return
		}
	}
	for k, was := range before {
		n := scale.Capacity(a.reachable(k))
		if n <= was {
			continue
		}
		svc := a.world.Services[k].V
		spec, ok := a.world.SpecOf(k, svc.Target)
		if !ok {
			continue
		}
		most, why := spec.Scale.Max, fmt.Sprintf("max %d", spec.Scale.Max)
		if svc.Pin != nil {
			most, why = max(most, svc.Pin.Instances), fmt.Sprintf("%s, a pin of %d", why, svc.Pin.Instances)
		}
		if svc.Target != svc.Current {
			most, why = max(most, svc.Rolling)+spec.Rollout.Surge, fmt.Sprintf(
				"%s, rolling %d with surge %d", why, svc.Rolling, spec.Rollout.Surge)
		}
		if n > most {
			a.fail(b.Revision, "%s grew from %d to %d instances (%s):%s", k, was, n, why,
				list(a.world.Of(k)))
		}
	}
}
