package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// Unfit returns why a host breaks the placement rule of a service, or does not give a grant, or "".
// The host is the subject of the reason. lacks may be nil.
func Unfit(
	h pando.Host, rule pando.Place, apart func(pando.HostName) bool,
	lacks func(pando.HostName) string,
) string {
	if rule.Only != "" {
		if name, value, _ := strings.Cut(rule.Only, "="); h.Label(name) != value {
			if name == pando.SpreadHost {
				return "is not the host " + value
			}
			return "lacks the label " + rule.Only
		}
	}
	if rule.Spread != "" && !h.Tunnel {
		return "receives no connections from other hosts (`pando up --listen`)"
	}
	if rule.Apart != "" && apart(h.Name) {
		return fmt.Sprintf("has instances of %s, and the service stays apart from it", rule.Apart)
	}
	if lacks != nil {
		return lacks(h.Name)
	}
	return ""
}

// Candidate is a host as a place of the next instance.
type Candidate struct {
	pando.Host
	Standing
}

// Explain reports for each candidate whether the next instance of a service may start there, and
// marks the host where it starts. waits is why none can start now, or "".
func Explain(all []Candidate, w Wish, waits string) []pando.HostFit {
	out := make([]pando.HostFit, len(all))
	var takers []pando.Host // of any service
	for n, c := range all {
		why := c.objection(w)
		if c.Here && !c.Standing.Leaving && !c.Removed {
			takers = append(takers, c.Host)
		}
		out[n] = pando.HostFit{
			Host: c.Host.Name, Instances: w.Beside(c.Host.Name), Takes: why == "", Reason: why,
		}
	}
	next, praise := "", ""
	if h, why, err := Place(takers, w); err == nil && waits == "" {
		next, praise = string(h.Name), why
	}
	for n := range out {
		f := &out[n]
		switch {
		case !f.Takes:
		case string(f.Host) == next:
			f.Next, f.Reason = true, praise
		case next != "":
			f.Reason = fmt.Sprintf("it has room; %s comes first", next)
		default:
			f.Takes, f.Reason = false, waits
		}
	}
	return out
}

// objection returns why a host takes no instance of a service, or "".
func (c Candidate) objection(w Wish) string {
	switch {
	case c.Frozen != "":
		return "it is frozen: " + c.Frozen
	case c.Removed:
		return "it was removed from the cluster"
	case !c.Here:
		return "it is away"
	case c.Standing.Drained:
		return fmt.Sprintf("it is drained (`pando hosts undrain %s`)", c.Host.Name)
	case c.Standing.Leaving:
		return "it leaves"
	case w.Home == c.Host.Name && c.Unfit != "":
		return "it " + c.Unfit
	case w.Home == c.Host.Name:
		return c.full(w)
	}
	if why := Unfit(c.Host, w.Rule, w.Apart, w.Lacks); why != "" {
		return "it " + why
	}
	if w.Home != "" {
		return fmt.Sprintf("all instances run near the first, on %s", w.Home)
	}
	return c.full(w)
}

// crowds returns why a host has no place for one more instance of the tenant, or nil.
func (w Wish) crowds(h pando.HostName) error {
	u := share.Use{All: int64(w.Loads[h].Instances)}
	if w.Seats == nil {
		return hostBound.AdmitsOperator(u, 1)
	}
	own, operators := w.Seats(h)
	u.Own, u.Owners = int64(own), u.All-int64(operators)
	if w.Spec.Key().Tenant == pando.DefaultTenant {
		return hostBound.AdmitsOperator(u, 1)
	}
	return hostBound.Admits(u, 1)
}

// full returns the resource that a host lacks for the new instance, or "".
func (c Candidate) full(w Wish) string {
	is, need := w.Loads[c.Host.Name], w.Spec.Resources
	short := func(what string, used, each, most int64) string {
		return fmt.Sprintf("it is full: %d of %d %s are given away, and the instance may use %d",
			used, most, what, each)
	}
	switch {
	case w.crowds(c.Host.Name) != nil:
		return fmt.Sprintf("it is full: it has %d instances: %v", is.Instances, w.crowds(c.Host.Name))
	case c.Memory > 0 && is.MemoryBytes+need.MemoryBytes > c.Memory:
		return short("bytes of memory", is.MemoryBytes, need.MemoryBytes, c.Memory)
	case c.PIDs > 0 && is.PIDs+need.PIDs > c.PIDs:
		return short("processes", is.PIDs, need.PIDs, c.PIDs)
	}
	return ""
}

// Fitting returns the hosts that keep the placement rule of a service, and give its grants. lacks
// may be nil.
func Fitting(
	hosts []pando.Host, rule pando.Place, apart func(pando.HostName) bool,
	lacks func(pando.HostName) string,
) []pando.Host {
	if rule == (pando.Place{}) && lacks == nil {
		return hosts
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(h pando.Host) bool {
		return Unfit(h, rule, apart, lacks) != ""
	})
}
