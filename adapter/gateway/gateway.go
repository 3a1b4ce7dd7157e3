// Package gateway turns manifests of Kubernetes' Gateway API into specs: a Gateway with its
// TCPRoutes and UDPRoutes, and the EndpointSlices of their backends.
//
// Each listener with a route becomes a service with external endpoints. A word that Pando does not
// have is an error at its place in the file. The package reads no file and asks no cluster.
package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"regexp"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// Result is the specs of a file of manifests.
type Result struct {
	Specs []pando.Spec
	// Warnings name the objects without an effect.
	Warnings spec.Problems
}

var isGateway = regexp.MustCompile(
	`(?m)(^\s*(- )?|^[^#\n]*[{,]\s*)["']?apiVersion["']?\s*:\s*["']?gateway\.networking\.k8s\.io/`)

// Is reports whether a file has objects of the Gateway API.
func Is(data []byte) bool { return isGateway.Match(data) }

// Parse converts the manifests of a file. Errors carry name. With any error it returns
// spec.Problems.
func Parse(name string, data []byte) (Result, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if err := spec.Plain(name, data); err != nil {
		return Result{}, err
	}
	f := &file{name: name}
	f.read(data)
	if len(f.problems) == 0 {
		f.convert()
	}
	if len(f.problems) > 0 {
		return Result{}, f.problems
	}
	return Result{Specs: f.specs, Warnings: f.warnings}, nil
}

// convert makes a spec of each listener with a route.
func (f *file) convert() {
	if len(f.gateways) == 0 {
		f.problems = append(f.problems, spec.Problem{File: f.name, Line: 1, Column: 1,
			Message: "no Gateway: its listeners are the ports of the services; add it to the file"})
	}
	used := map[*route]int{} // listeners
	for _, g := range f.gateways {
		for n := range g.Spec.Listeners {
			for _, r := range f.routesOf(g, n) {
				used[r]++
			}
		}
	}
	for _, g := range f.gateways {
		for n, l := range g.Spec.Listeners {
			where := fmt.Sprintf("spec.listeners[%d]", n)
			switch all := f.routesOf(g, n); len(all) {
			case 0:
				f.warn(g.object, where, "no %sRoute leads from %s: nothing is published there",
					l.Protocol, l.Name)
			case 1:
				f.publish(all[0], l, used[all[0]] > 1)
			default:
				f.wrong(all[1].object, "spec.parentRefs", "the listener %s has the route %s already: one "+
					"port leads to one service", l.Name, all[0].Name)
			}
		}
	}
	for _, r := range f.routes {
		if used[r] == 0 {
			f.warn(r.object, "spec.parentRefs", "no listener of a Gateway in this file takes this route")
		}
	}
}

// routesOf returns the routes that attach to a listener of a gateway.
func (f *file) routesOf(g *gateway, n int) (out []*route) {
	l := g.Spec.Listeners[n]
	for _, r := range f.routes {
		if r.protocol != l.Protocol || r.Namespace != g.Namespace {
			continue
		}
		for _, p := range r.Spec.ParentRefs {
			of := p.Namespace == "" || p.Namespace == g.Namespace
			if of && p.Name == g.Name && (p.SectionName == "" || p.SectionName == l.Name) &&
				(p.Port == 0 || p.Port == l.Port) {
				out = append(out, r)
				break
			}
		}
	}
	return out
}

// publish makes the spec of a listener and its route. A route of several listeners has a spec for
// each, with both names.
func (f *file) publish(r *route, l listener, several bool) {
	s := pando.Spec{Name: pando.ServiceName(r.Name)}
	if several {
		s.Name += pando.ServiceName("-" + l.Name)
	}
	if r.Namespace != string(pando.DefaultTenant) {
		s.Tenant = pando.Tenant(r.Namespace)
	}
	if len(r.Spec.Rules) != 1 {
		f.wrong(r.object, "spec.rules", "%d rules: a port leads to the backends of one rule",
			len(r.Spec.Rules))
		return
	}
	protocol := map[string]pando.Protocol{"TCP": pando.TCP, "UDP": pando.UDP}[l.Protocol]
	s.Endpoints = f.endpoints(r)
	if len(s.Endpoints) == 0 {
		return
	}
	s.Ports = []pando.Port{{Published: l.Port, Target: s.Endpoints[0].Port, Protocol: protocol}}
	if err := spec.Check(s.WithDefaults()); err != nil {
		f.wrong(r.object, "", "%v", err)
		return
	}
	f.specs = append(f.specs, s)
}

// endpoints returns the backends of a route. Each backend's weight is shared by its endpoints.
func (f *file) endpoints(r *route) []pando.External {
	var out []pando.External
	var shares []float64
	before := len(f.problems)
	for n, b := range r.Spec.Rules[0].BackendRefs {
		where := fmt.Sprintf("spec.rules[0].backendRefs[%d]", n)
		weight := 1.0
		if b.Weight != nil {
			weight = float64(*b.Weight)
		}
		switch {
		case b.Kind != "" && b.Kind != "Service" || b.Group != "":
			f.wrong(r.object, where+".kind", "%s: want a Service", b.Kind)
			continue
		case b.Namespace != "" && b.Namespace != r.Namespace:
			f.wrong(r.object, where+".namespace", "the backend is of another namespace, and a service has "+
				"endpoints of its own tenant: move the route there")
			continue
		case weight < 0:
			f.wrong(r.object, where+".weight", "%g: want 0 or more", weight)
			continue
		case weight == 0:
			continue
		}
		found := f.addresses(r, where, b)
		for _, at := range found {
			out = append(out, pando.External{Address: at.Addr(), Port: at.Port()})
			shares = append(shares, weight/float64(len(found)))
		}
	}
	if len(out) == 0 && len(f.problems) == before {
		f.wrong(r.object, "spec.rules[0].backendRefs", "no backend has a weight above 0")
	}
	weigh(out, shares)
	return out
}

// weigh scales the shares to whole weights, of which the largest is 100. Equal shares need none.
func weigh(all []pando.External, shares []float64) {
	most, equal := 0.0, true
	for _, s := range shares {
		most, equal = max(most, s), equal && s == shares[0]
	}
	for n := range all {
		if !equal {
			all[n].Weight = max(1, int(shares[n]/most*100+0.5))
		}
	}
}

// addresses returns the ready endpoints of a backend, from its EndpointSlices.
func (f *file) addresses(r *route, where string, b backend) (out []netip.AddrPort) {
	want, ok := f.target(r, where, b)
	if !ok {
		return nil
	}
	slices := 0
	for _, e := range f.slices {
		if e.Namespace != r.Namespace || e.service != b.Name {
			continue
		}
		slices++
		port, ok := e.port(want)
		if !ok {
			continue
		}
		for k, one := range e.Endpoints {
			if one.Conditions.Ready != nil && !*one.Conditions.Ready || len(one.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(one.Addresses[0])
			if err != nil {
				f.wrong(e.object, fmt.Sprintf("endpoints[%d].addresses", k), "%q: want an IP address",
					one.Addresses[0])
				continue
			}
			out = append(out, netip.AddrPortFrom(a, port))
		}
	}
	switch {
	case slices == 0:
		f.wrong(r.object, where+".name", "no EndpointSlice of %s is in the file; add the output of "+
			"`kubectl get endpointslices -l %s=%s -o yaml`", b.Name, serviceLabel, b.Name)
	case len(out) == 0:
		f.wrong(r.object, where+".port", "%s has no ready endpoint with the port %d/%s", b.Name, b.Port,
			want.protocol)
	}
	return out
}

// target returns the port of the endpoints behind a port of a Service, which has a number and a
// protocol: DNS has port 53 twice.
func (f *file) target(r *route, where string, b backend) (target, bool) {
	other := ""
	for _, s := range f.services {
		if s.Namespace != r.Namespace || s.Name != b.Name {
			continue
		}
		for _, p := range s.Spec.Ports {
			switch {
			case p.Port != b.Port:
			case cmp.Or(p.Protocol, tcp) == r.protocol:
				return target{service: true, name: p.Name, protocol: r.protocol}, true
			default:
				other = cmp.Or(p.Protocol, tcp)
			}
		}
	}
	if other != "" {
		f.wrong(r.object, where+".port", "%s has the port %d by %s, and not by %s", b.Name, b.Port, other,
			r.protocol)
		return target{}, false
	}
	return target{number: b.Port, protocol: r.protocol}, true
}
