package lifecycle

import (
	"fmt"

	"pando.run/pando"
)

// Standing describes whether a host can run instances.
type Standing struct {
	Here    bool // it has its lease
	Leaving bool // it has its lease and takes no new instances
	Removed bool // it is no longer a member of the cluster
}

// Takes reports whether the host takes new instances.
func (s Standing) Takes() bool { return s.Here && !s.Leaving }

// absence returns the reason that a host takes no instances.
func (s Standing) absence() string {
	if s.Leaving {
		return "leaves"
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
	Takes  bool           // Home takes instances
}

// Home returns the host on which all instances of a service are placed. That host serves the VIP
// and has the objects of the state. "" means that the service has no home yet or may move.
//
// A service with a pushed state, or with a state in its spec, is bound to its home. Its commits
// must survive while the host is away. Any other service moves when the lease of its home ends, or
// when the home leaves.
func Home(t Tie) pando.HostName {
	switch {
	case t.Pushed:
		return t.Head
	case t.Home == "" && t.Oldest != "":
		return t.Oldest // the service was placed before homes existed
	case t.State || t.Takes:
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

// Waits returns why no instance of a service can start now, or "" if one can. anyHost means that
// some host takes instances.
func Waits(anyHost bool, home pando.HostName, s Standing) string {
	switch {
	case !anyHost:
		return "no host takes instances"
	case home == "" || s.Takes():
		return ""
	case s.Removed:
		return fmt.Sprintf("its state was on %s, which was removed from the cluster: "+
			"`pando rm --purge` and a new deploy begin without that state", home)
	}
	return fmt.Sprintf("its state is on %s, which %s: it starts there again when the host is back; "+
		"`pando rm --purge` and a new deploy begin without that state", home, s.absence())
}

// Moved returns the reason to record when a service moves from its home to another host.
func Moved(from, to pando.HostName, s Standing) string {
	return fmt.Sprintf("it moves to %s, because %s, its home, %s; it keeps no state there",
		to, from, s.absence())
}
