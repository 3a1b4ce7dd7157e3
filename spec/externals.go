package spec

import (
	"fmt"

	"pando.run/pando"
)

var externalsKind = listKind(`["192.0.2.7:8080", "192.0.2.8:8080 weight 50"]`,
	map[string]any{"type": "string", "pattern": `^[0-9a-fA-F:.\[\]]+( weight [0-9]{1,3})?$`},
	pando.ParseExternal)

func externalTexts(all []pando.External) []string {
	var out []string
	for _, e := range all {
		out = append(out, e.String())
	}
	return out
}

// pingConflicts returns the probes by ICMP echo of a spec with programs of its own.
func pingConflicts(s pando.Spec) (out []conflict) {
	for _, p := range s.Health.Probes() {
		if p.Kind == pando.ProbePing && len(s.Endpoints) == 0 {
			out = append(out, conflict{p.Key, "ping proves nothing of a program, because the kernel of " +
				"its host answers: use tcp or udp; ping is a probe of endpoints"})
		}
	}
	return out
}

// externalConflicts returns the keys of a spec that contradict its endpoints.
func externalConflicts(s pando.Spec) (out []conflict) {
	n := len(s.Endpoints)
	if n == 0 {
		return pingConflicts(s)
	}
	add := func(is bool, path, format string, about ...any) {
		if is {
			out = append(out, conflict{path, fmt.Sprintf(format, about...)})
		}
	}
	add(s.Scale.Zero, "scale.min", "0 beside %d endpoints: each is one instance: drop it", n)
	add(s.Scale.Min > 0 && s.Scale.Min != n, "scale.min",
		"%d beside %d endpoints: each is one instance: drop it", s.Scale.Min, n)
	add(s.Scale.Max > 0 && s.Scale.Max != n, "scale.max",
		"%d beside %d endpoints: each is one instance: drop it", s.Scale.Max, n)
	add(n > pando.ExternalsMax, "endpoints", "%d of at most %d", n, pando.ExternalsMax)
	for _, p := range s.Health.Probes() {
		add(p.Kind == pando.ProbeExec, p.Key, "runs inside an instance, and here is no program: "+
			"use tcp or http")
		port, by := p.Port, p.Dials()
		if port == 0 {
			port = s.ProbePort(p.Probe).Target
		}
		add(by != "" && len(s.Ports) > 0 && !hasTarget(s, port, by), p.Key,
			"%s port %d is no target of ports: only these reach the endpoint", by, port)
	}
	seen := map[pando.External]bool{}
	for _, e := range s.Endpoints {
		add(e.Port != 0 && len(s.Ports) > 1, "endpoints",
			"%s: a port of its own goes with one published port: leave it out", e)
		e.Weight = 0
		add(seen[e], "endpoints", "%s is listed twice: give it a weight", e)
		seen[e] = true
	}
	return out
}

func hasTarget(s pando.Spec, port uint16, by pando.Protocol) bool {
	for _, p := range s.Ports {
		if p.Target == port && p.Protocol == by {
			return true
		}
	}
	return false
}
