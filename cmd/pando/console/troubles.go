package console

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/edge"
)

// Troubles prints what stands in the way on the hosts: a host that is away or silent, a link that is
// cut, a shim or a name server that does not answer. Each command that shows services prints it.
func Troubles(w io.Writer, all []pando.HostStatus) {
	for _, find := range []func([]pando.HostStatus) []string{
		frozen, absent, presumedDead, cutOff, twoHolders, outOfReach,
	} {
		for _, text := range find(all) {
			fmt.Fprintln(w, cli.Clean(text))
		}
	}
}

// Ground is what a caller sees of the hosts. One with a token of a tenant sees no host, and the names of
// its own instances that run without a record.
type Ground struct {
	Hosts  []pando.HostStatus
	Adrift string
}

// Troubles prints what stands in the way on the hosts, as far as the caller sees them.
func (g Ground) Troubles(w io.Writer) {
	if g.Adrift != "" {
		fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s run without a record: %s", g.Adrift, cli.AdriftHelp)))
	}
	Troubles(w, g.Hosts)
}

// Waiting prints what the instances that start or drain wait for: a registry, a hook, a connection. A
// list of services and a history have no row for them.
func Waiting(w io.Writer, all []pando.ServiceStatus) {
	for _, st := range all {
		for _, i := range st.Instances {
			starts := i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseStarting && i.Run == nil
			why := i.Waits
			if why == "" && starts {
				why = i.Reason
			}
			if why != "" && i.Away == "" {
				fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s on %s is %s: %s", i.ID, i.Host, i.Phase, why)))
			}
		}
	}
}

// frozen returns the reasons of frozen hosts, and their instances without a record.
func frozen(all []pando.HostStatus) (out []string) {
	for _, h := range all {
		if h.Frozen != "" {
			out = append(out, fmt.Sprintf("%s is frozen: %s", h.Name, h.Frozen))
		}
		if h.Adrift != "" {
			out = append(out, fmt.Sprintf("%s runs %s without a record: %s", h.Name, h.Adrift,
				cli.AdriftHelp))
		}
	}
	return out
}

// absent names the hosts whose agents are away, or do not answer the server.
func absent(all []pando.HostStatus) (out []string) {
	for _, h := range all {
		switch {
		case h.State == pando.HostAway && h.Heard.IsZero():
			out = append(out, fmt.Sprintf("%s is away", h.Name))
		case h.State == pando.HostAway:
			out = append(out, fmt.Sprintf("%s is away since %s", h.Name,
				h.Heard.UTC().Format("15:04:05Z")))
		case h.Unread != "":
			out = append(out, fmt.Sprintf("%s cannot say what its steering lost: %s", h.Name, h.Unread))
		case h.Losses == nil:
			out = append(out, fmt.Sprintf("the agent of %s does not answer the server", h.Name))
		}
		if h.ServerSilent {
			out = append(out, fmt.Sprintf("the server of %s does not answer the one that was asked",
				h.Name))
		}
	}
	return out
}

// presumedDead names the hosts that the probes of other hosts find dead.
func presumedDead(all []pando.HostStatus) (out []string) {
	by := map[string][]string{}
	for _, h := range all {
		if h.Losses == nil {
			continue
		}
		for _, dead := range strings.Fields(h.Losses.Dead) {
			by[dead] = append(by[dead], string(h.Name))
		}
	}
	for _, dead := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprintf("%s answers no probe of %s: it gets no new connections "+
			"from there", dead, strings.Join(by[dead], ", ")))
	}
	return out
}

// cutOff names the pairs of living hosts between which no packet comes through.
func cutOff(all []pando.HostStatus) (out []string) {
	seen := map[string]bool{}
	for _, h := range all {
		if h.Losses == nil {
			continue
		}
		for _, other := range strings.Fields(h.Losses.Cut) {
			pair := []string{string(h.Name), other}
			slices.Sort(pair)
			if name := strings.Join(pair, " and "); !seen[name] {
				seen[name] = true
				out = append(out, fmt.Sprintf("between %s no packet comes through, and both live: they send "+
					"each other no new connections", name))
			}
		}
	}
	slices.Sort(out)
	return out
}

// outOfReach names the hosts that get no new flows from others, which have no way to them, and the
// programs and resolvers that a host cannot ask.
func outOfReach(all []pando.HostStatus) (out []string) {
	for _, h := range all {
		if h.Losses == nil {
			continue
		}
		if h.Losses.Unreached != "" {
			out = append(out, fmt.Sprintf("%s steers around hosts: %s", h.Name, h.Losses.Unreached))
		}
		if h.Losses.Silent != "" {
			out = append(out, fmt.Sprintf("%s asks again, for these programs run without a shim "+
				"that answers: %s", h.Name, h.Losses.Silent))
		}
		if h.Losses.Resolvers != "" {
			out = append(out, fmt.Sprintf("name servers do not answer %s: %s", h.Name,
				h.Losses.Resolvers))
		}
	}
	return out
}

// twoHolders names the pairs of hosts that answer for the same VIPs of one network.
func twoHolders(all []pando.HostStatus) (out []string) {
	held := func(h pando.HostStatus) (s edge.Shares) {
		if h.Losses != nil {
			s, _ = edge.ParseShares(h.Losses.Holds) // a host of another build says nothing
		}
		return s
	}
	for n, h := range all {
		for _, o := range all[n+1:] {
			if both := held(h).And(held(o)).Len(); h.Segment == o.Segment && both > 0 {
				out = append(out, fmt.Sprintf("two holders: %s and %s both answer on %s for %d of %d "+
					"shares of the VIPs; they settle that within seconds once they reach each other",
					h.Name, o.Name, h.Segment, both, edge.VIPShares))
			}
		}
	}
	return out
}
