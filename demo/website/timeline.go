package website

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
	"pando.run/pando/driver/clock"
)

// look is the interval at which the demo reads the service, lookWhy the interval at which it reads
// the decisions.
const look, lookWhy = 50 * time.Millisecond, 250 * time.Millisecond

// crowd is the number of instances at one moment.
type crowd struct {
	at                         time.Duration // since the load began
	starting, serving, leaving int
}

// timeline records the observations of a run.
type timeline struct {
	mu      sync.Mutex
	begin   time.Time // when the load began
	step    string    // description of the current step
	vip     string
	totals  totals
	crowds  []crowd
	now     pando.ServiceStatus
	because map[string]pando.Because
	hosts   map[pando.InstanceID]pando.HostName // of every instance that was seen
	served  map[pando.InstanceID]time.Time      // when it was first seen in rotation
	dead    pando.HostName                      // the killed host
	died    time.Time
	shown   shown
}

func newTimeline() *timeline {
	return &timeline{
		begin: time.Now(), because: map[string]pando.Because{}, shown: shown{told: map[string]bool{}},
		hosts: map[pando.InstanceID]pando.HostName{}, served: map[pando.InstanceID]time.Time{},
	}
}

// killed records the death of a host.
func (t *timeline) killed(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead, t.died = pando.HostName(host), time.Now()
}

// living counts the instances outside of the killed host. The records of its instances wait for its
// return.
func (t *timeline) living(st pando.ServiceStatus) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range st.Instances {
		if t.dead == "" || i.Host != t.dead {
			n++
		}
	}
	return n
}

// victims returns the instances of the killed host, or nil if no host was killed. The caller holds
// the lock.
func (t *timeline) victims() map[string]bool {
	if t.dead == "" {
		return nil
	}
	out := map[string]bool{}
	for i, h := range t.hosts {
		if h == t.dead {
			out[string(i)] = true
		}
	}
	return out
}

// say sets the description of the current step.
func (t *timeline) say(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = step
}

// loaded records a report of the load generator.
func (t *timeline) loaded(r load.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.add(r)
}

// observe reads the service until ctx ends.
func (t *timeline) observe(ctx context.Context, s *stage, name pando.ServiceKey) {
	var asked time.Time
	for pando.Sleep(ctx, clock.Clock{}, look) == nil {
		if st, err := s.api.Service(ctx, name); err == nil {
			t.count(st)
		}
		if now := time.Now(); now.Sub(asked) >= lookWhy {
			t.explain(ctx, s, name)
			asked = now
		}
	}
}

func (t *timeline) count(st pando.ServiceStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := crowd{at: time.Since(t.begin)}
	for _, i := range st.Instances {
		if i.Host != "" {
			t.hosts[i.ID] = i.Host
		}
		if t.served[i.ID].IsZero() && i.Phase.TakesFlows() {
			t.served[i.ID] = time.Now()
		}
		if i.Host == t.dead {
			continue // the cluster learns of its death later
		}
		switch {
		case i.Phase.TakesFlows():
			c.serving++
		case i.Phase.Leaving() || i.Phase == pando.PhaseDraining:
			c.leaving++
		case i.Phase == pando.PhaseStarting || i.Phase == pando.PhasePlaced:
			c.starting++
		}
	}
	t.crowds, t.now = append(t.crowds, c), st
}

// explain records the decisions so far.
func (t *timeline) explain(ctx context.Context, s *stage, name pando.ServiceKey) {
	all, err := s.api.Why(ctx, name, 0)
	if err != nil {
		return // the service is gone; the recorded decisions stay
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range all {
		if b.Intent != nil {
			t.because[string(b.Intent.ID)] = b
		} else if b.Decision != nil {
			t.because[b.Decision.ID] = b
		}
	}
}

// told lists the decisions, oldest first. The caller holds the lock.
func (t *timeline) told() []pando.Because {
	return slices.SortedFunc(maps.Values(t.because), func(a, b pando.Because) int {
		return cmp.Or(born(a).Compare(born(b)), cmp.Compare(string(verb(a)), string(verb(b))))
	})
}

func verb(b pando.Because) pando.Verb {
	if b.Intent != nil {
		return b.Intent.Verb
	}
	return pando.Verb(b.Decision.Kind)
}

// born returns the time of an ask or decision.
func born(b pando.Because) time.Time {
	if b.Intent != nil {
		return b.Intent.Asked()
	}
	return b.Decision.At
}

// row returns one decision for the report.
func (t *timeline) row(b pando.Because) report.Decision {
	at := fmt.Sprintf("%+.2f s", born(b).Sub(t.begin).Seconds())
	if d := b.Decision; d != nil {
		return report.Decision{
			At: at, Who: who(d.By), What: string(d.Kind), Why: d.Reason, Outcome: string(d.Instance),
		}
	}
	i := b.Intent
	d := report.Decision{At: at, Who: who(i.By), What: string(i.Verb), Why: i.Why(),
		Outcome: string(i.State) + ": " + i.Reason}
	if i.Instance != "" && string(i.Instance) != i.By.Name {
		d.What += " → " + string(i.Instance)
	}
	if i.State == pando.IntentInRotation {
		d.Outcome = "in rotation after " + report.Took(took(*i))
	}
	return d
}

func who(a pando.Asker) string {
	if a.Kind == pando.AskerInstance {
		return a.Name
	}
	return a.String()
}

// took returns the time from the ask to its newest step.
func took(i pando.Intent) time.Duration { return i.Changed().Sub(i.Asked()) }

// copies returns, for each copy, the time from its ask until new flows were steered to it. The
// caller holds the lock.
func (t *timeline) copies() []time.Duration {
	var out []time.Duration
	for _, b := range t.because {
		if i := b.Intent; i != nil && i.Verb == pando.VerbReplicate &&
			i.State == pando.IntentInRotation && i.By.Kind == pando.AskerInstance {
			out = append(out, took(*i))
		}
	}
	slices.Sort(out)
	return out
}

// lifeName returns the name of an instance in the chart of lives, with its host if there are
// several.
func (t *timeline) lifeName(id pando.InstanceID) string {
	first := pando.HostName("")
	for _, h := range t.hosts {
		if first == "" {
			first = h
		}
		if h != first && t.hosts[id] != "" {
			return suffix(string(id)) + " " + string(t.hosts[id])
		}
	}
	return suffix(string(id))
}

// lives returns the lives of the instances, derived from the decisions. The caller holds the lock.
func (t *timeline) lives(end time.Duration) []report.Life {
	type life struct{ asked, serves, leaves, gone time.Time }
	known, order := map[pando.InstanceID]*life{}, []pando.InstanceID{}
	for _, b := range t.told() {
		i := b.Intent
		if i == nil || i.Instance == "" || i.State == pando.IntentCoalesced {
			continue
		}
		l := known[i.Instance]
		if l == nil {
			l = &life{asked: i.Asked()}
			known[i.Instance] = l
			order = append(order, i.Instance)
		}
		for _, step := range i.History {
			switch {
			case step.State == pando.IntentInRotation:
				l.serves = step.At
			case step.State == pando.IntentDraining:
				l.leaves = step.At
			case step.State == pando.IntentDead:
				l.gone = step.At
			}
		}
	}
	var out []report.Life
	for _, id := range order {
		l := known[id]
		if l.serves.IsZero() { // its agent has not recorded the step
			l.serves = t.served[id]
		}
		if host := t.hosts[id]; host == t.dead && host != "" && (l.gone.IsZero() ||
			l.gone.After(t.died)) {
			l.gone = t.died
		}
		at := func(v, otherwise time.Time) float64 {
			if v.IsZero() {
				v = otherwise
			}
			return min(max(0, v.Sub(t.begin).Seconds()), end.Seconds())
		}
		last := t.begin.Add(end)
		gone := at(l.gone, last)
		leaves := min(at(l.leaves, last), gone)
		serves := min(at(l.serves, last), leaves)
		out = append(out, report.Life{Name: t.lifeName(id), Spans: []report.Span{
			{Kind: "starting", From: at(l.asked, last), To: serves},
			{Kind: "serving", From: serves, To: leaves}, {Kind: "leaving", From: leaves, To: gone},
		}})
	}
	return out
}
