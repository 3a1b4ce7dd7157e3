package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

const hostPortWant = "a port such as 443, 8080:80 or 53:53/udp, or a list of them"

// hostPortsKind reads ports of hosts as entries of pando.Port without a target. joinHostPorts joins
// them with the ports of the service.
var hostPortsKind = kind{
	schema: map[string]any{"oneOf": []any{hostPortSchema, map[string]any{
		"type": "array", "items": hostPortSchema, "minItems": 1}}},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		items, paths := []ast.Node{n}, []string{path}
		if list, ok := n.(*ast.SequenceNode); ok {
			items, paths = list.Values, nil
			for i := range items {
				paths = append(paths, fmt.Sprintf("%s[%d]", path, i))
			}
			if len(items) == 0 {
				r.wrong(n, path, hostPortWant)
			}
		}
		var out []pando.Port
		for i, item := range items {
			if p, ok := r.hostPort(item, paths[i]); ok {
				out = append(out, p)
			}
		}
		take(out)
	},
}

var hostPortSchema = map[string]any{"type": []any{"integer", "string"}, "minimum": 1,
	"maximum": 65535, "pattern": portForm.String()}

// hostPort reads HOST or HOST:PUBLISHED, with an optional protocol.
func (r *reader) hostPort(n ast.Node, path string) (pando.Port, bool) {
	p := pando.Port{Protocol: pando.TCP}
	s, ok := text(n)
	if !ok || !portForm.MatchString(s) {
		r.wrong(n, path, hostPortWant)
		return p, false
	}
	ports, protocol, slash := strings.Cut(s, "/")
	if slash {
		p.Protocol = pando.Protocol(protocol)
	}
	host, published, both := strings.Cut(ports, ":")
	var err error
	if p.Host, err = parsePort(host); err == nil && both {
		p.Published, err = parsePort(published)
	}
	if err != nil {
		r.at(n, path, "%v", err)
		return p, false
	}
	return p, true
}

// joinHostPorts gives the ports of a service their ports of hosts, and removes the entries of
// publish.host.
func joinHostPorts(s *pando.Spec) (out []conflict) {
	wrong := func(format string, args ...any) {
		out = append(out, conflict{"publish.host", fmt.Sprintf(format, args...)})
	}
	var ports, extra []pando.Port
	for _, p := range s.Ports {
		if p.Target == 0 && p.Host != 0 {
			extra = append(extra, p)
		} else {
			ports = append(ports, p)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	_, lost := useless("publish.host", formOf(pando.Spec{Kind: s.Kind, Ports: ports}))
	for _, p := range extra {
		at := publishedFor(ports, p)
		switch {
		case lost != "":
			wrong("%s", lost)
		case at < 0:
			wrong("%s: write HOST:PUBLISHED with one of the published ports: %s",
				hostPortText(p), strings.Join(portTexts(ports), ", "))
		case ports[at].Host != 0:
			wrong("port %d/%s is published at %d of the hosts already: one port of the hosts leads to it",
				ports[at].Published, p.Protocol, ports[at].Host)
		default:
			ports[at].Host = p.Host
		}
	}
	s.Ports = ports
	return append(out, hostPortConflicts(*s)...)
}

// publishedFor returns the index of the port to which a port of the hosts leads: the named one,
// that of the same number, or the only one of the protocol. -1: none.
func publishedFor(ports []pando.Port, p pando.Port) int {
	named := p.Published
	if named == 0 {
		named = p.Host
	}
	at := slices.IndexFunc(ports, func(o pando.Port) bool {
		return o.Published == named && o.Protocol == p.Protocol
	})
	if at >= 0 || p.Published != 0 {
		return at
	}
	for i, o := range ports {
		if o.Protocol != p.Protocol {
			continue
		}
		if at >= 0 {
			return -1
		}
		at = i
	}
	return at
}

// hostPortConflicts returns why a service cannot have its ports of the hosts.
func hostPortConflicts(s pando.Spec) (out []conflict) {
	seen := map[pando.HostPort]bool{}
	for _, p := range pando.HostPorts(s.Ports) {
		var why string
		switch {
		case seen[p]:
			why = fmt.Sprintf("port %s of the hosts is there twice", p)
		case p.Port >= pando.OwnPortFirst && p.Port <= pando.OwnPortLast:
			why = fmt.Sprintf("port %s of the hosts is Pando's own (%d to %d): choose another one", p,
				pando.OwnPortFirst, pando.OwnPortLast)
		}
		if why != "" {
			out = append(out, conflict{"publish.host", why})
		}
		seen[p] = true
	}
	return out
}

// hostPortTexts returns the ports of the hosts as a spec has them.
func hostPortTexts(ports []pando.Port) (out []string) {
	for _, p := range ports {
		if p.Host != 0 {
			out = append(out, hostPortText(p))
		}
	}
	return out
}

func hostPortText(p pando.Port) string {
	out := strconv.Itoa(int(p.Host))
	if p.Published != 0 {
		out += ":" + strconv.Itoa(int(p.Published))
	}
	if p.Protocol == pando.UDP {
		out += "/udp"
	}
	return out
}
