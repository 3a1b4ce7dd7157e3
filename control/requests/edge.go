package requests

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/world"
)

// portTaken returns why the hosts' ports of a new spec belong to another service, or to a program
// of this host. It returns nil if they are free.
func (c *desk) portTaken(w *world.World, s pando.Spec) error {
	wanted := pando.HostPorts(s.Ports)
	if len(wanted) == 0 {
		return nil
	}
	mine := map[pando.HostPort]bool{}
	for key, svc := range w.Services { // only a deploy with ports of hosts looks at all services
		for _, n := range []int{svc.V.Target, svc.V.Current} {
			known, _ := w.SpecOf(key, n)
			for _, p := range pando.HostPorts(known.Ports) {
				if key == s.Key() {
					mine[p] = true
				} else if slices.Contains(wanted, p) {
					return fmt.Errorf("%w: publish.host: port %s of the hosts leads to service %s, and %s "+
						"wants it too: choose another one", pando.ErrConflict, p, key, s.Key())
				}
			}
		}
	}
	for _, p := range wanted {
		if mine[p] || c.taken == nil {
			continue
		}
		if owner, taken := c.taken(p); taken {
			return fmt.Errorf("%w: publish.host: %w", pando.ErrConflict,
				&pando.TakenError{Port: p, Owner: owner})
		}
	}
	return nil
}

// oneHost returns a warning if only one of several hosts will answer at its own address. It returns
// "" if that host was chosen by name.
func oneHost(w *world.World, s pando.Spec) string {
	if len(pando.HostPorts(s.Ports)) == 0 || s.Place.Spread != "" || len(w.Hosts) < 2 ||
		strings.HasPrefix(s.Place.Only, "host=") {
		return ""
	}
	return "publish.host: all its instances are on one host, and only that host answers at its own " +
		"address; place: {spread: host} lets every host answer"
}

// twoWriters returns a warning if two instances of a program may write to its folder at the same
// time, or "". Databases and queues corrupt their files that way. A program that reports ready
// itself, or keeps its state in Pando, was written to run beside others.
func (c *desk) twoWriters(s pando.Spec) string {
	knows := s.Health.Ready.Kind == pando.ProbeExplicit || len(s.State) > 0
	if knows || s.Single() || s.Files().Digest != "" || c.writable == nil ||
		!c.writable(s) {
		return ""
	}
	when := fmt.Sprintf("scale.max is %d", s.Scale.Max)
	if s.Rollout.Order != pando.StopFirst {
		when = "a rollout starts the new one beside the old"
	}
	return fmt.Sprintf("two instances may write to %s at the same time: all share it, and %s; "+
		"if the program needs it for itself, as a database does, set scale: {max: 1}", s.WorkingDir, when)
}
