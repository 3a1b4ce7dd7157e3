package decide

import (
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// Self is the asker of control's own intents and decisions.
var Self = pando.Asker{Kind: pando.AskerControl}

// Draft is one decision about one service in the making. It holds what the store says, it passes that to
// the rules of scale and lifecycle, in order, and it collects what they say as one transaction.
type Draft struct {
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
	past      *past

	puts      map[pando.Key]pando.Stored
	deletes   []pando.Key
	conds     map[pando.Key]pando.Condition
	wake      time.Time     // the next look; zero: after the next change
	forgotten bool          // the service's records are deleted, all or the next part of them
	starts    bool          // an instance is placed
	earlier   []scale.Grant // of the last second
	given     []scale.Grant // by this decision

	list     []pando.Instance // the result of reachable
	listed   int              // the changes of the crew that the list has
	listHome pando.HostName
	load     map[pando.HostName]lifecycle.Load
	loadOf   pando.HostName // the host of load, or "" for all hosts
	hashes   map[int]string // of the specs of its revisions, as far as asked
	takers   []pando.Host   // the result of hosts
	fits     []pando.Host   // the result of fitting
	// shunned are the hosts with instances of the service from which this one stays apart.
	shunned map[pando.HostName]bool
	taken   scale.Use // by the new instances of this decision
	// replaces is the instance that the next new one replaces (Instance.Replaces).
	replaces pando.InstanceID
	// roomless is the reason why no host has room for the next instance, or "".
	roomless string
	// quotaNoted is set once this decision has looked for the record of a wait for a quota.
	quotaNoted bool
	after      []pando.ServiceName // leave before this service does
}

// past holds the earlier failures and starts of the service. A decision does not change them.
type past struct {
	failures []lifecycle.Failure // their times are on the clock of this process
	started  time.Time           // when control itself last placed an instance
	healed   pando.StoreRevision // the last commit that created an instance which succeeded
}

// About returns the decision about a service before its first rule, and false if the service has no
// record.
func About(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs) (*Draft, bool) {
	svc, ok := w.Services[s]
	if !ok {
		return nil, false
	}
	return &Draft{
		w: w, now: now, ids: ids, before: svc, svc: svc.V, keeper: w.Keepers[s].V,
		crew: newCrew(w.Of(s)), parts: partsOf(world.RunsOf(w, s)),
		decisions: w.DecisionsOf(s), intents: w.IntentsOf(s),
		puts: map[pando.Key]pando.Stored{}, conds: map[pando.Key]pando.Condition{},
	}, true
}

// partsOf returns the instances of the runs of a service by name.
func partsOf(all []pando.Instance) map[pando.InstanceID]pando.Instance {
	out := make(map[pando.InstanceID]pando.Instance, len(all))
	for _, i := range all {
		out[i.ID] = i
	}
	return out
}
