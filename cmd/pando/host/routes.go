package host

import (
	"fmt"
	"io"
	"strings"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/kernel"
)

// routing prints the hosts that announce VIPs to routers, and the sessions that are down.
func routing(w io.Writer, all []pando.HostStatus) {
	for _, h := range all {
		if h.Losses == nil || h.Losses.Routes == nil {
			continue
		}
		for _, line := range routes(*h.Losses.Routes) {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s %s", h.Name, line)))
		}
	}
}

// routes returns the routes of a host and each trouble, line by line.
func routes(r pando.Routes) (lines []string) {
	var up []string
	for _, s := range r.Routers {
		if s.Up {
			up = append(up, fmt.Sprintf("%s (AS %d)", s.Address, s.AS))
			continue
		}
		lines = append(lines, fmt.Sprintf("has no BGP session with %s (AS %d): %s", s.Address, s.AS,
			s.Why))
	}
	switch {
	case r.Why != "":
		lines = append(lines, "announces no VIP by BGP: "+r.Why)
	case len(up) > 0:
		lines = append(lines, fmt.Sprintf("announces %d VIPs to %s", r.VIPs, strings.Join(up, ", ")))
	}
	if r.Unable > 0 {
		lines = append(lines, fmt.Sprintf("has no way to the instances of %d services, and announces "+
			"them not", r.Unable))
	}
	return lines
}

// sessionFindings returns the findings about the BGP sessions of hosts.
func sessionFindings(all []pando.HostStatus) (out []kernel.Finding) {
	for _, h := range all {
		if h.Losses == nil || h.Losses.Routes == nil {
			continue
		}
		for _, s := range h.Losses.Routes.Routers {
			f := kernel.Finding{
				Name:  fmt.Sprintf("BGP, %s to %s (AS %d)", h.Name, s.Address, s.AS),
				State: kernel.OK, Found: "the session is up",
			}
			if !s.Up {
				f.State, f.Found = kernel.Missing, s.Why
				f.Costs = "that router sends no flows to " + string(h.Name)
				f.Mend = "let the router answer at TCP port 179 and name the same systems and password, " +
					"as --bgp-router, --bgp-as and --bgp-password-file do on " + string(h.Name)
			}
			out = append(out, f)
		}
	}
	return out
}
