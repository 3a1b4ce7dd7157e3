package compose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
		Name: c.names[s.Name], Tenant: c.tenant(), Entrypoint: s.Entrypoint, Command: s.Command,
		Environment: map[string]string{}, User: s.User, WorkingDir: s.WorkingDir,
		Aliases: c.aliases(s), Labels: maps.Clone(map[string]string(s.Labels)),
	}
	c.stops(s, &out)
	out.Init = s.Init != nil && *s.Init
	out.Hostname = c.hostname(s)
	kernelWords(s, &out)
	resolvers(c, s, &out)
	if s.Runtime == pando.RuntimeCrun {
		out.Runtime = s.Runtime
	}
	out.Image.Reference = spec.Beside(c.dir, s.Image)
	if s.Image == "" && s.Build == nil {
		c.deny(at(), "has no image")
	} else if name := c.unsetIn(c.text("services", s.Name, "image")); name != "" &&
		spec.CheckImage(s.Image) != nil {
		c.deny(at("image"), "variable %s has no value: set it, or write it into .env", name)
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
	out.Restart = c.restart(s, at)
	c.size(s, &out)
	c.ports(s, &out)
	c.health(s, &out)
	c.rollout(s, &out)
	mounts{c, s.Name, &out, at}.convert(s)
	out.Needs = c.needs(s)
	parts{c, &out, at}.convert(s)
	c.namespace(s, &out)
	c.walls(s, &out, at)
	c.networks(s, &out)
	// In Compose, other services reach every port. Those that the image exposes are known at the deploy.
	out.Exposed = s.Image != "" && s.NetworkMode != "host" && s.NetworkMode != "none" && !out.IsJob()
	for _, why := range strings.Split(message(spec.Check(out.WithDefaults())), "\n") {
		if why != "" && len(c.problems) == 0 {
			c.deny(at(), "%s", strings.TrimPrefix(why, pando.ErrInvalid.Error()+": "))
		}
	}
	return out
}

// kernelWords carries over the groups, the bounds of processes and the settings of the kernel.
func kernelWords(s types.ServiceConfig, out *pando.Spec) {
	out.GroupAdd = slices.Clone(s.GroupAdd)
	if len(s.Sysctls) > 0 {
		out.Sysctls = maps.Clone(map[string]string(s.Sysctls))
	}
	for name, u := range s.Ulimits {
		if out.Ulimits == nil {
			out.Ulimits = map[string]string{}
		}
		out.Ulimits[name] = fmt.Sprintf("%d:%d", u.Soft, u.Hard)
		if u.Single != 0 {
			out.Ulimits[name] = fmt.Sprint(u.Single)
		}
	}
	if s.Umask != nil {
		out.Umask = fmt.Sprintf("%04o", *s.Umask)
	}
	out.Resources.CPUSet = strings.ReplaceAll(s.CPUSet, " ", "")
}

// resolvers carries over the resolvers, domains and options. The resolver of a host and those inside
// the project are not in reach as resolvers: Pando's name server answers for both.
func resolvers(c *converter, s types.ServiceConfig, out *pando.Spec) {
	out.DNSSearch, out.DNSOptions = slices.Clone(s.DNSSearch), slices.Clone(s.DNSOpts)
	for _, address := range s.DNS {
		if err := spec.CheckResolver(address); err != nil {
			c.warn([]string{"services", s.Name, "dns"}, "%s is left out: %s", address,
				strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": "))
			continue
		}
		out.DNS = append(out.DNS, address)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// hostname returns the name of the machine that the program sees: with its domain, if it has one.
func (c *converter) hostname(s types.ServiceConfig) string {
	at := []string{"services", s.Name, "hostname"}
	if name := c.unsetIn(c.text(at...)); name != "" && s.Hostname != "" {
		c.deny(at, "variable %s has no value: set it, or write it into .env", name)
		return ""
	}
	switch {
	case s.DomainName == "":
		return s.Hostname
	case s.Hostname == "":
		c.warn([]string{"services", s.Name, "domainname"}, "is left out: `hostname` has the whole name")
		return ""
	}
	return strings.TrimSuffix(s.Hostname, "."+s.DomainName) + "." + s.DomainName
}

// stops converts the words of a stop.
func (c *converter) stops(s types.ServiceConfig, out *pando.Spec) {
	if s.StopSignal != "" {
		name, err := pando.SignalName(s.StopSignal)
		if err != nil {
			c.deny([]string{"services", s.Name, "stop_signal"}, "%v", err)
		}
		out.StopSignal = name
	}
	if s.StopGracePeriod != nil {
		out.StopSeconds = time.Duration(*s.StopGracePeriod).Seconds()
	}
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

// cpuPeriodDefault is the kernel's period of cpu_quota, in microseconds.
const cpuPeriodDefault = 100_000

// decimal returns the number that a file has: compose-go keeps 0.1 as 0.10000000149.
func decimal(f float32) float64 {
	out, err := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'f', -1, 32), 64)
	if err != nil {
		return float64(f)
	}
	return out
}

// size converts the number of instances and their limits.
func (c *converter) size(s types.ServiceConfig, out *pando.Spec) {
	n := s.GetScale()
	out.Scale.Min, out.Scale.Zero = n, n == 0
	out.Scale.Max = max(n, 1)
	limit := &out.Resources
	limit.CPUs, limit.MemoryBytes, limit.PIDs = decimal(s.CPUS), int64(s.MemLimit), s.PidsLimit
	if s.CPUQuota > 0 && limit.CPUs == 0 {
		limit.CPUs = float64(s.CPUQuota) / float64(cmp.Or(s.CPUPeriod, cpuPeriodDefault))
	}
	if s.Deploy != nil && s.Deploy.Resources.Limits != nil {
		l := s.Deploy.Resources.Limits
		limit.CPUs = cmp.Or(decimal(float32(l.NanoCPUs)), limit.CPUs)
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
			out[c.names[name]] = pando.NeedHealthy
		case types.ServiceConditionCompletedSuccessfully:
			out[c.names[name]] = pando.NeedCompleted
		default:
			out[c.names[name]] = pando.NeedStarted
		}
	}
	return out
}

// namespace converts `userns_mode`.
func (c *converter) namespace(s types.ServiceConfig, out *pando.Spec) {
	switch s.UserNSMode {
	case "":
	case pando.UsernsHost:
		out.UsernsMode = pando.UsernsHost
	default:
		c.warn([]string{"services", s.Name, "userns_mode"}, "%s is left out: a service has users of "+
			"its own", s.UserNSMode)
	}
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
			c.deny(path, "has no file: store it by `pando secret set %s`, and write "+
				"external: true; or write it into a file of the host, and name it with file:", name)
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

// networks converts the networks of a service. The project is one network; if all of them are
// internal, the service reaches only its project.
func (c *converter) networks(s types.ServiceConfig, out *pando.Spec) {
	if s.NetworkMode == "none" {
		return
	}
	internal := len(s.Networks) > 0
	for name := range s.Networks {
		internal = internal && c.project.Networks[name].Internal
	}
	if internal {
		out.Reach = []pando.Reach{pando.ReachTenant}
		if out.DNS != nil {
			out.DNS = nil
			c.warn([]string{"services", s.Name, "dns"}, "is left out: its networks are internal")
		}
	}
	if len(s.Networks) > 0 && len(c.project.Networks) > 1 &&
		c.has("services", s.Name, "networks") {
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
