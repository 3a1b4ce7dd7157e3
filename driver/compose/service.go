package compose

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// service converts one service.
func (c *converter) service(s types.ServiceConfig) pando.Spec {
	at := func(words ...string) []string { return append([]string{"services", s.Name}, words...) }
	out := pando.Spec{
		Name: c.serviceName(s.Name), Tenant: c.tenant(), Entrypoint: s.Entrypoint, Command: s.Command,
		Environment: map[string]string{}, User: s.User, WorkingDir: s.WorkingDir,
		StopSignal: signal(s.StopSignal),
		Labels:     maps.Clone(map[string]string(s.Labels)),
	}
	if s.Runtime == pando.RuntimeCrun {
		out.Runtime = s.Runtime
	}
	out.Image.Reference = spec.Beside(c.dir, s.Image)
	if s.Image == "" && s.Build == nil {
		c.deny(at(), "has no image")
	} else if s.Build != nil && s.Image != "" {
		c.warn(at("build"), "is left out: build %s first, and push it to a registry of the hosts",
			s.Image)
	}
	if s.Entrypoint != nil && len(s.Entrypoint) == 0 { // it clears the image's
		out.Entrypoint, out.Command = slices.Clone(s.Command), nil
		if len(s.Command) == 0 {
			c.deny(at("entrypoint"), "clears the image's, and `command` is missing: write it")
		}
	}
	for k, v := range s.Environment {
		if v != nil {
			out.Environment[k] = *v
		}
	}
	if s.StopGracePeriod != nil {
		out.StopSeconds = time.Duration(*s.StopGracePeriod).Seconds()
	}
	out.Restart = c.restart(s, at)
	c.size(s, &out)
	c.ports(s, &out)
	c.health(s, &out)
	c.rollout(s, &out)
	mounts{c, s.Name, &out, at}.convert(s)
	out.Needs = c.needs(s)
	parts{c, &out, at}.convert(s)
	c.walls(s, &out, at)
	c.networks(s, at)
	for _, why := range strings.Split(message(spec.Check(out.WithDefaults())), "\n") {
		if why != "" && len(c.problems) == 0 {
			c.deny(at(), "%s", strings.TrimPrefix(why, pando.ErrInvalid.Error()+": "))
		}
	}
	return out
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func signal(s string) string {
	if s == "" || strings.HasPrefix(s, "SIG") || s[0] >= '0' && s[0] <= '9' {
		return s
	}
	return "SIG" + s
}

// restart returns the policy. Compose's default is `no`.
func (c *converter) restart(
	s types.ServiceConfig, at func(...string) []string,
) pando.RestartPolicy {
	policy, path := s.Restart, at("restart")
	if s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		policy, path = cmp.Or(s.Deploy.RestartPolicy.Condition, "any"), at("deploy", "restart_policy")
	}
	name, tries, limited := strings.Cut(policy, ":")
	if limited {
		c.warn(path, "the limit of %s tries is left out: the back-off is Pando's", tries)
	}
	switch name {
	case "always", "unless-stopped", "any":
		return pando.RestartAlways
	case "on-failure":
		return pando.RestartOnFailure
	}
	return pando.RestartNo
}

// size converts the number of instances and their limits.
func (c *converter) size(s types.ServiceConfig, out *pando.Spec) {
	n := s.GetScale()
	out.Scale.Min, out.Scale.Zero = n, n == 0
	out.Scale.Max = max(n, 1)
	limit := &out.Resources
	limit.CPUs, limit.MemoryBytes, limit.PIDs = float64(s.CPUS), int64(s.MemLimit), s.PidsLimit
	if s.Deploy != nil && s.Deploy.Resources.Limits != nil {
		l := s.Deploy.Resources.Limits
		limit.CPUs = cmp.Or(float64(l.NanoCPUs), limit.CPUs)
		limit.MemoryBytes = cmp.Or(int64(l.MemoryBytes), limit.MemoryBytes)
		limit.PIDs = cmp.Or(l.Pids, limit.PIDs)
	}
	limit.PIDs = max(limit.PIDs, 0) // -1: no limit
}

// rollout converts the update. Without a word, an old instance ends before a new one starts, as
// `docker compose up` replaces a container.
func (c *converter) rollout(s types.ServiceConfig, out *pando.Spec) {
	out.Rollout.Order = pando.StopFirst
	if s.Deploy == nil || s.Deploy.UpdateConfig == nil {
		return
	}
	u := s.Deploy.UpdateConfig
	if u.Order == "start-first" {
		out.Rollout.Order = pando.StartFirst
	}
	if u.Parallelism != nil && out.Rollout.Order == pando.StartFirst {
		out.Rollout.Surge = int(min(max(*u.Parallelism, 1), spec.InstancesMax))
	}
	out.Rollout.HealthySeconds = time.Duration(cmp.Or(u.Monitor, u.Delay)).Seconds()
}

// needs converts `depends_on`. A need that is not required and not enabled is left out.
func (c *converter) needs(s types.ServiceConfig) map[pando.ServiceName]pando.Need {
	out := map[pando.ServiceName]pando.Need{}
	for _, name := range sortedKeys(s.DependsOn) {
		d, at := s.DependsOn[name], []string{"services", s.Name, "depends_on", name}
		if d.Restart {
			c.warn(at, "restart: true is left out: a new %s restarts nothing", name)
		}
		if _, there := c.project.Services[name]; !there {
			if d.Required {
				c.deny(at, "%s is in a profile that is not enabled: choose it with --profile", name)
			}
			continue
		}
		switch d.Condition {
		case types.ServiceConditionHealthy:
			out[pando.ServiceName(name)] = pando.NeedHealthy
		case types.ServiceConditionCompletedSuccessfully:
			out[pando.ServiceName(name)] = pando.NeedCompleted
		default:
			out[pando.ServiceName(name)] = pando.NeedStarted
		}
	}
	return out
}

// walls converts secrets and the options of security.
func (c *converter) walls(s types.ServiceConfig, out *pando.Spec, at func(...string) []string) {
	for _, ref := range s.Secrets {
		name := strings.TrimPrefix(cmp.Or(ref.Target, ref.Source), "/run/secrets/")
		from, path := c.project.Secrets[ref.Source], []string{"secrets", ref.Source}
		switch {
		case strings.Contains(name, "/"):
			c.deny(at("secrets"), "%s: secrets are files of /run/secrets: drop target", name)
		case bool(from.External) && name != cmp.Or(from.Name, ref.Source):
			c.deny(at("secrets"), "%s: a secret of the store has its own name: drop target", name)
		case bool(from.External):
			out.StoredSecrets = append(out.StoredSecrets, pando.StoredSecret{Name: name})
		case from.File == "":
			c.deny(path, "has no file: write its value into a file of the host, and name it with file:")
		default:
			if out.Secrets == nil {
				out.Secrets = map[string]string{}
			}
			out.Secrets[name] = from.File
		}
		if ref.Mode != nil || ref.UID != "" || ref.GID != "" {
			c.warn(at("secrets"), "%s: uid, gid and mode are left out: the program's user reads it", name)
		}
	}
	for _, o := range s.SecurityOpt {
		switch strings.Replace(o, ":", "=", 1) {
		case pando.SeccompUnconfined:
			out.SecurityOpt = append(out.SecurityOpt, pando.SeccompUnconfined)
		case "no-new-privileges", "no-new-privileges=true": // of every instance
		default:
			c.warn(at("security_opt"), "%s is left out", o)
		}
	}
}

// networks reports names and addresses that a service has in its networks only.
func (c *converter) networks(s types.ServiceConfig, at func(...string) []string) {
	for _, link := range s.Links {
		if name, alias, ok := strings.Cut(link, ":"); ok && name != alias {
			c.deny(at("links"), "%s has the name %s alone: write that name in the program", name, name)
		}
	}
	for _, name := range sortedKeys(s.Networks) {
		n := s.Networks[name]
		if n == nil {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(n.Aliases),
			func(a string) bool { return a == s.Name })
		if len(others) > 0 {
			c.deny(at("networks", name, "aliases"), "it has the name %s alone, not %s: write that name "+
				"in the programs", s.Name, strings.Join(others, " or "))
		}
		if n.Ipv4Address != "" || n.Ipv6Address != "" {
			c.warn(at("networks", name), "its address is left out: it is reached by its name")
		}
	}
	if len(s.Networks) > 0 && len(c.project.Networks) > 1 && c.has(at("networks")...) {
		c.warn([]string{"networks"},
			"all services of the project reach each other: networks do not separate them")
	}
}

// duration returns the seconds of a duration, or 0 for none.
func duration(d *types.Duration) float64 {
	if d == nil {
		return 0
	}
	return time.Duration(*d).Seconds()
}
