package lifecycle

import (
	"fmt"
	"strings"

	"pando.run/pando"
)

// Standing describes whether a host can run instances.
type Standing struct {
	Here    bool // it has its lease
	Leaving bool // it has its lease and takes no new instances
	Drained bool // it is Leaving because an operator drains it
	Removed bool // it is no longer a member of the cluster
	// Unfit is why it breaks the placement rule of the service (see the function), or "".
	Unfit string
}

// Takes reports whether the host takes new instances of the service.
func (s Standing) Takes() bool { return s.Here && !s.Leaving && s.Unfit == "" }

// absence returns the reason that a host takes no instances.
func (s Standing) absence() string {
	switch {
	case s.Here && s.Drained:
		return "is drained"
	case s.Here && s.Leaving:
		return "leaves"
	case s.Here && s.Unfit != "":
		return s.Unfit
	}
	return "is away"
}

// Tie holds the facts that tie a service to a host.
type Tie struct {
	Pushed bool           // its state has been pushed
	Head   pando.HostName // the host of the pushed state
	Home   pando.HostName // the host of its newest placement, or ""
	Oldest pando.HostName // without a Home: the host of its oldest reachable instance, or ""
	State  bool           // its spec has a state
	Spread bool           // its spec spreads the instances over hosts
	Copies bool           // its spec wants its state on several hosts
	Keeper pando.HostName // of a state on several hosts, or ""
	Takes  bool           // Home takes instances of some service
	Breaks bool           // Home breaks the rule of placement in its spec
	Runs   bool           // instances of the service are on Home
}

// Home returns the host on which all instances of a service are placed. That host serves the VIP
// and has the objects of the state. "" means that the service has no home yet, may move, or spreads
// over hosts.
//
// A service with a pushed state, or with a state in its spec, is bound to its home. Its commits
// must survive while the host is away. A state on several hosts has a keeper instead, which moves
// to another copy (see Keep). Its service may spread. Any other service moves when the lease of its
// home ends, or when the home leaves. A rule of placement never moves instances that run, because
// connections that enter at the new home would break.
func Home(t Tie) pando.HostName {
	switch {
	case t.Spread && (t.Keeper != "" || t.Copies && !t.Pushed):
		return ""
	case t.Keeper != "":
		return t.Keeper
	case t.Pushed:
		return t.Head
	case t.Spread && !t.State:
		return ""
	case t.Home == "" && t.Oldest != "":
		return t.Oldest // the service was placed before homes existed
	case t.State || t.Takes && (!t.Breaks || t.Runs):
		return t.Home
	}
	return ""
}

// Counts reports whether an instance on a host counts. It may run while its host is away, but
// another host can take the service meanwhile. With a home, instances elsewhere do not count:
// BringHome decides about them.
func Counts(host, home pando.HostName, here bool) bool {
	return here && (home == "" || host == home)
}

// Waits returns why no instance of a service can start now, or "" if one can. takers is the number
// of hosts that take instances, and fitting the number of those that keep the service's rule. away are
// the members that are away: their labels are not known now, so the rule may mean one of them.
func Waits(
	takers, fitting int, home pando.HostName, s Standing, away []pando.HostName,
) string {
	switch {
	case takers == 0:
		return "no host takes instances" + absent(away)
	case home == "" && fitting == 0:
		return "no host that takes instances keeps its rule `place`, gives its `grants` and has its " +
			"`runtime`" + absent(away) + ": change them, give a host the label (`pando up --label`), allow " +
			"the grant there (`pando hosts allow`), or install crun; `pando why NAME --pending` explains each " +
			"host"
	case home == "" || s.Takes():
		return ""
	case s.Here && !s.Leaving:
		return fmt.Sprintf("its home is %s, which %s: change its rule `place` or its `grants`, give "+
			"that host the label (`pando up --label`) or allow the grant, or remove the service and deploy "+
			"it again", home, s.Unfit)
	case s.Removed:
		return fmt.Sprintf("its state was on %s, which was removed from the cluster: "+
			"`pando rm --purge` and a new deploy begin without that state", home)
	}
	if s.Here && s.Drained {
		return fmt.Sprintf("its state is on %s, which is drained: it starts there again after "+
			"`pando hosts undrain %[1]s`", home)
	}
	return fmt.Sprintf("its state is on %s, which %s: it starts there again when the host is back; "+
		"`pando rm --purge` and a new deploy begin without that state", home, s.absence())
}

// awayNamed is how many hosts that are away a reason names.
const awayNamed = 5

// absent names the hosts that are away, in a reason.
func absent(away []pando.HostName) string {
	var names []string
	for _, h := range away[:min(len(away), awayNamed)] {
		names = append(names, string(h))
	}
	if more := len(away) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return ", and " + names[0] + " is away"
	}
	return ", and " + strings.Join(names, ", ") + " are away"
}

// Moved returns the reason to record when a service moves from its home to another host.
func Moved(from, to pando.HostName, s Standing) string {
	return fmt.Sprintf("it moves to %s, because %s, its home, %s; it keeps no state there",
		to, from, s.absence())
}
