package compose

import (
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// placement converts `deploy.placement` and `deploy.mode`.
func (c parts) placement(s types.ServiceConfig) {
	out := c.out
	if s.Deploy == nil {
		return
	}
	at := func(words ...string) []string { return c.at(append([]string{"deploy"}, words...)...) }
	switch s.Deploy.Mode {
	case "", "replicated":
	case "replicated-job":
		makeJob(out)
	default:
		c.deny(at("mode"), "%s: Pando has no such mode: write replicas, and "+
			"placement: {max_replicas_per_node: 1} to have one on each host", s.Deploy.Mode)
	}
	p := s.Deploy.Placement
	for _, text := range p.Constraints {
		c.constraint(text, out, at("placement", "constraints"))
	}
	for _, one := range p.Preferences {
		label, ok := strings.CutPrefix(one.Spread, "node.labels.")
		switch {
		case ok && pando.CheckLabel("label", label) == nil && len(s.Volumes) == 0:
			out.Place.Spread = label
		default:
			c.warn(at("placement", "preferences"), "spread: %s is left out: write `place` into the spec",
				one.Spread)
		}
	}
	switch {
	case p.MaxReplicas == 0:
	case p.MaxReplicas == 1 && len(s.Volumes) == 0 && out.Place.Spread == "":
		out.Place.Spread = pando.SpreadHost
	default:
		c.warn(at("placement", "max_replicas_per_node"), "is left out: `place: {spread: host}` puts "+
			"instances on the hosts with the fewest")
	}
}

// makeJob makes a service run to its end, in as many instances at once as it has.
func makeJob(out *pando.Spec) {
	out.Kind, out.Job.Parallel = pando.KindJob, out.Scale.Min
	out.Scale, out.Rollout = pando.Scale{}, pando.Rollout{}
	out.Restart, out.Health, out.Aliases = "", pando.Health{}, nil
}

// awaited reports whether a service runs to its end: it is not started again, and another service
// of the project waits for its success.
func (c parts) awaited(s types.ServiceConfig) bool {
	out := c.out
	if out.Restart != pando.RestartNo || len(out.Ports) > 0 || out.Scale.Min < 1 {
		return false
	}
	for _, other := range c.project.Services {
		if other.DependsOn[s.Name].Condition == types.ServiceConditionCompletedSuccessfully {
			return true
		}
	}
	return false
}

// constraint converts node.labels.zone==a and node.hostname==h1.
func (c parts) constraint(text string, out *pando.Spec, at []string) {
	name, value, equal := strings.Cut(text, "==")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	label, labelled := strings.CutPrefix(name, "node.labels.")
	if name == "node.hostname" {
		label, labelled = pando.SpreadHost, true
	}
	_, _, err := pando.CutLabel(label + "=" + value)
	switch {
	case name == "node.role" || name == "node.platform.os" && value == "linux":
		c.warn(at, "%s is left out: every host runs instances", text)
	case !equal || !labelled || err != nil:
		c.deny(at, "%s: want node.labels.NAME==VALUE or node.hostname==HOST, with the labels of "+
			"`pando up --label`", text)
	case out.Place.Only != "":
		c.deny(at, "%s: a spec has one constraint: give the hosts a label for all of them", text)
	default:
		out.Place.Only = label + "=" + value
	}
}
