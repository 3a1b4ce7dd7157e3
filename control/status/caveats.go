package status

import (
	"fmt"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// Unspread returns why the instances of a service cannot each have a host, or a value of the label,
// of their own, or "". wanted is the least number of instances. It looks at no more hosts than it
// needs.
func Unspread(w *world.World, s pando.Spec, wanted int) string {
	label := s.Place.Spread
	if label == "" || wanted < 1 || s.IsJob() {
		return ""
	}
	lacks := decide.Lacks(w, s)
	shunned := map[pando.HostName]bool{}
	if s.Place.Apart != "" {
		shunned = w.HostsOf(pando.ServiceKey{Tenant: s.Key().Tenant, Name: s.Place.Apart})
	}
	apart := func(h pando.HostName) bool { return shunned[h] }
	groups, enough := map[string]bool{}, max(wanted, 2)
	for _, h := range w.HostNames() {
		if !decide.TakesNew(w, h) || lifecycle.Unfit(w.Hosts[h].V, s.Place, apart, lacks) != "" {
			continue
		}
		if groups[w.Hosts[h].V.Label(label)] = true; len(groups) == enough {
			return ""
		}
	}
	n := len(groups)
	if n == 0 {
		return "" // it waits for a host, which has its own reason
	}
	of := "host"
	if label != pando.SpreadHost {
		of = "value of the label " + label
	}
	if n == 1 {
		return fmt.Sprintf("place.spread has no effect now: only one %s takes its instances, and its end is "+
			"the end of all; `pando why %s --pending` explains each host", of, s.Name)
	}
	return fmt.Sprintf("place.spread: %d instances share %d hosts or labels, so the end of one %s takes "+
		"more than one instance; add hosts (`pando token`), or lower scale.min", wanted, n, of)
}

// Unwoken returns why no packet starts an instance of a service whose least number is 0, with the
// cure, or "".
func Unwoken(s pando.Spec) string {
	if !s.Scale.Zero || s.Scale.FromZero() || s.IsJob() || len(s.Ports) == 0 || len(s.Endpoints) > 0 {
		return ""
	}
	return fmt.Sprintf("scale.min is 0 without scale.idle: without an instance, connections are refused, "+
		"and no packet starts one; add idle: 60s to scale, or start one with `pando scale %s 1`", s.Key())
}

// caveats returns what the spec of a service promises and does not hold now, for its status.
func caveats(w *world.World, svc pando.Service, s pando.Spec, capacity int) string {
	least := s.Scale.Min
	if svc.Pin != nil {
		least = svc.Pin.Instances
	}
	switch {
	case svc.Removing:
	case capacity == 0 && least == 0 && svc.Pin == nil:
		return Unwoken(s)
	case s.Place.Spread != "":
		return Unspread(w, s, max(least, min(capacity, 2)))
	}
	return ""
}
