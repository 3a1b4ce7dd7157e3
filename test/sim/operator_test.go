package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

var (
	service    = pando.DefaultService("web")
	stateTypes = map[string]pando.StateType{"hits": pando.StateCounter, "log": pando.StateLog}
	by         = pando.Asker{Kind: pando.AskerOperator, Name: "sim"}
)

// operator deploys, pins and removes one service of a run, and reads the registry from outside.
type operator struct {
	c    *cluster
	key  pando.ServiceKey
	dice *rand.Rand
	spec pando.Spec
	main pando.StateHead // the newest seen

	known *world.World // after the first `read` commits
	read  int
}

// operatorsOf returns the operators of a run. Every fourth run has neighbours of the service. They
// write no state, and compete for the leader, the hosts and the store.
func operatorsOf(c *cluster) []*operator {
	all := []*operator{newOperator(c, service)}
	if c.seed%4 == 3 {
		for _, name := range []pando.ServiceName{"api", "jobs"} {
			o := newOperator(c, pando.DefaultService(name))
			o.spec.Environment[envNoState], o.spec.State = "yes", nil
			all = append(all, o)
		}
	}
	if c.history != nil {
		o := newOperator(c, contested)
		o.spec.Environment[envNoState], o.spec.State = "yes", nil
		all = append(all, o)
	}
	return all
}

// clone copies a spec as the wire does: the world keeps its copy.
func clone(s pando.Spec) pando.Spec {
	s.Environment = maps.Clone(s.Environment)
	return s
}

func newOperator(c *cluster, key pando.ServiceKey) *operator {
	o := &operator{c: c, key: key, dice: c.dice("operator "+string(key.Name), 0), known: world.New()}
	o.spec = pando.Spec{
		Name: key.Name, Command: []string{"web"}, State: stateTypes, Environment: map[string]string{},
		Ports:  []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}},
		Health: pando.Health{ReadySecondsMax: 2}, StopSeconds: 1,
		Rollout: pando.Rollout{HealthySeconds: 0.5},
	}
	if hostsOf(c.seed) > 1 {
		o.spec.Environment[envNoState] = "yes"
	}
	if c.accounts != nil && key == service {
		delete(o.spec.Environment, envNoState)
		o.spec.Environment[envAccount] = "yes"
		if hostsOf(c.seed) > 1 {
			o.spec.StateCopies = 2
		}
	}
	if spreads(c.seed) {
		if o.spec.StateCopies == 0 {
			o.spec.State = nil
		}
		o.spec.Place.Spread = pando.SpreadHost
	}
	if c.seed%4 == 1 {
		o.spec.Environment[envLazy] = "yes"
	}
	o.bounds()
	return o
}

// bounds draws the scale of the spec.
func (o *operator) bounds() {
	least := 1 + o.dice.IntN(3)
	o.spec.Scale = pando.Scale{Min: least, Max: least + o.dice.IntN(5), Warm: o.dice.IntN(2)}
	if o.spec.Scale.Max == 1 { // one writer, and no reserve beside it
		o.spec.Scale.Warm = 0
	}
	o.spec.Rollout.Order = []pando.RolloutOrder{"", "", pando.StopFirst}[o.dice.IntN(3)]
	if o.spec.Rollout.Order == pando.StopFirst && o.spec.WithDefaults().Single() {
		o.spec.Scale.Warm = 0
	}
	if o.dice.IntN(3) == 0 {
		o.spec.Scale.RatePerSecond = float64(1 + o.dice.IntN(3))
	}
}

// operators calls a control that runs.
func (o *operator) operators(f func(context.Context, access.Operators) error) error {
	ctx, cancel := context.WithTimeout(o.c.ctx, 2*time.Second)
	defer cancel()
	return f(ctx, o.c.front)
}

func (o *operator) deploy() error {
	return o.operators(func(ctx context.Context, p access.Operators) error {
		spec := clone(o.spec)
		status, err := p.Deploy(ctx, spec, by)
		if err == nil {
			o.c.promises.keep(func() {
				o.c.promises.deploys = append(o.c.promises.deploys, deployed{
					pando.RevisionKey(o.key, status.Latest), pando.RevisionKey(o.key, status.Target),
					spec.Environment["VERSION"],
				})
			})
		}
		return err
	})
}

// change makes one random change.
func (o *operator) change() error {
	switch o.dice.IntN(6) {
	case 0:
		o.bounds()
		return o.deploy()
	case 1:
		o.spec.Environment["VERSION"] = strconv.Itoa(o.dice.IntN(1000))
		return o.deploy()
	case 2: // a revision that fails and is rolled back
		was := o.spec.Environment
		defer func() { o.spec.Environment = was }()
		o.spec.Environment = map[string]string{"VERSION": strconv.Itoa(o.dice.IntN(1000))}
		for k, v := range was {
			o.spec.Environment[k] = v
		}
		o.spec.Environment[[]string{envBroken, envSilent}[o.dice.IntN(2)]] = "yes"
		return o.deploy()
	case 3, 4:
		keep := time.Duration(o.dice.IntN(5000)) * time.Millisecond
		return o.operators(func(ctx context.Context, p access.Operators) error {
			_, err := p.Pin(ctx, o.key, 1+o.dice.IntN(5), keep, by)
			return err
		})
	default:
		return o.unpin()
	}
}

func (o *operator) unpin() error {
	return o.operators(func(ctx context.Context, p access.Operators) error {
		_, err := p.Unpin(ctx, o.key, by)
		return err
	})
}

func (o *operator) remove() error {
	err := o.operators(func(ctx context.Context, p access.Operators) error {
		return p.Remove(ctx, o.key, false, by)
	})
	if errors.Is(err, pando.ErrNotFound) {
		return nil
	}
	return err
}

// world returns the current contents of the registry.
func (o *operator) world() *world.World {
	history := o.c.registry.History()
	for _, b := range history[o.read:] {
		if err := o.known.Apply(b.Changes, b.Revision); err != nil {
			o.c.t.Error(err)
		}
	}
	o.read = len(history)
	if head, ok := o.known.Heads[o.key]; ok {
		o.main = head.V
	}
	return o.known
}

// runsAs reports whether an instance runs as those of a revision.
func runsAs(w *world.World, i pando.Instance, revision int) bool {
	was, _ := w.SpecOf(i.Service, i.Revision)
	is, known := w.SpecOf(i.Service, revision)
	return known && was.RunsAs(is)
}

// until retries f until it succeeds. It fails the run after most.
func (o *operator) until(what string, most time.Duration, f func() error) bool {
	deadline := time.Now().Add(most)
	for {
		err := f()
		if err == nil {
			return true
		}
		if time.Now().After(deadline) {
			o.c.t.Errorf("%s within %s: %v", what, most, err)
			return false
		}
		nap(100 * time.Millisecond)
	}
}

// settle checks that the cluster reaches the newest spec once faults and requests have stopped.
func (o *operator) settle() bool {
	return o.until("the last spec is taken", settleTime, o.deploy) &&
		o.until("the pin is lifted", settleTime, o.unpin) &&
		o.until("the world is as the spec wants", settleTime, o.settled)
}

func (o *operator) settled() error {
	w := o.world()
	svc := w.Services[o.key].V
	if svc.Phase != pando.ServiceServing || svc.Current != svc.Target {
		return fmt.Errorf("the service is %s (%s)%s", svc.Phase, svc.Reason, o.instances(w))
	}
	serving, warm := 0, 0
	for _, i := range w.Of(o.key) {
		switch {
		case i.Phase == pando.PhaseInRotation && runsAs(w, i, svc.Current):
			serving++
		case i.Phase == pando.PhaseWarm && i.Revision == svc.Current:
			warm++
		default:
			return fmt.Errorf("an instance is neither in rotation nor warm:%s", o.instances(w))
		}
	}
	if s := o.spec.Scale; serving < s.Min || serving > s.Max || warm != s.Warm {
		return fmt.Errorf("%d in rotation, %d warm; the spec has %+v:%s", serving, warm, s,
			o.instances(w))
	}
	for _, i := range w.IntentsOf(o.key) {
		if i.State == pando.IntentAsked {
			return fmt.Errorf("intent %s waits for an answer", i.ID)
		}
	}
	return nil
}

func (o *operator) instances(w *world.World) string { return list(w.Of(o.key)) }

func list(instances []pando.Instance) string {
	var b strings.Builder
	for _, i := range instances {
		fmt.Fprintf(&b, "\n  %s on %s, revision %d: %s (%s) since %s", i.ID, i.Host, i.Revision, i.Phase,
			i.Reason, i.Since.Format("05.000"))
	}
	return b.String()
}

// nothingLeft checks that a removed service has left no record, no sandbox, no branch and no table.
func (o *operator) nothingLeft() error {
	w := o.world()
	if n := len(w.Services) + len(w.Instances) + len(w.Intents) + len(w.Decisions); n > 0 {
		return fmt.Errorf("%d records are left:%s", n, o.instances(w))
	}
	for _, h := range o.c.hosts {
		if prepared := h.sandboxes.Prepared(); len(prepared) > 0 {
			return fmt.Errorf("%s has something prepared for %v", h.name, prepared)
		}
		if n := len(h.sandboxes.All()); n > 0 {
			return fmt.Errorf("%d sandboxes are left on %s", n, h.record.Name)
		}
		branches, err := state.Branches(h.objects, o.key)
		if err != nil || len(branches) > 0 {
			return fmt.Errorf("branches %v are left on %s (%v)", branches, h.record.Name, err)
		}
		if tables, err := h.steering.Published(o.c.ctx); err != nil || len(tables) > 0 {
			return fmt.Errorf("%v are steered on %s (%v)", tables, h.record.Name, err)
		}
	}
	return nil
}

// readLog counts the merged lines and returns the counter.
func (c *cluster) readLog(r *state.Repo, at pando.ObjectID, lines map[string]int) (total int) {
	log, err := r.Read(at, "log")
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		c.t.Error(err)
	}
	for line := range strings.Lines(string(log.Bytes)) {
		lines[strings.TrimSuffix(line, "\n")]++
	}
	hits, err := r.Read(at, "hits")
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		c.t.Error(err)
	}
	if len(hits.Bytes) > 0 {
		if total, err = strconv.Atoi(string(hits.Bytes)); err != nil {
			c.t.Error(err)
		}
	}
	return total
}
