package compose

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
)

// treatment is what the converter does with a word of Compose.
type treatment int

const (
	// honoured words become words of the spec, or Pando does already as they ask.
	honoured treatment = iota
	// named words are left out with a warning: the program runs without them.
	named
	// refused words are errors: the program needs them, and a spec has nothing like them.
	refused
	// unseen words change nothing that a program sees: other tools read them.
	unseen
)

// word is a word of Compose, by its path. A word covers the words below it that have no line of
// their own. "*" is any name.
type word struct {
	path string
	treatment
	text string // the reason, or the advice
}

const (
	leftOut      = "is left out"
	noPrivileges = "instances have no privileges: leave it out, or run this program without Pando"
	ownNetwork   = "each instance has a network of its own: publish its ports with `ports`"
	onWindows    = leftOut + ": it is a word for Windows"
	noSwap       = leftOut + ": an instance with `mem_limit` has no swap"
	outOfMemory  = leftOut + ": a program that needs more than `mem_limit` ends"
	shares       = leftOut + ": `cpus` and `mem_limit` are the limits of an instance"
)

// words are all words of the Compose specification. A word that is missing here is an error.
var words = []word{
	{"name", honoured, "the tenant"},
	{"version", unseen, "Compose itself ignores it"},
	{"include", honoured, "compose-go reads the files"},
	{"x-*", unseen, "extensions are for anchors and other tools"},
	{"jobs", refused, "write a service with `kind: job` and `schedule` into a spec file"},
	{"models", refused, "leave it out, and start the model yourself"},

	{"services.*.annotations", unseen, "metadata of the container"},
	{"services.*.attach", unseen, "the output of `docker compose up`"},
	{"services.*.blkio_config", named, shares},
	{"services.*.build", refused, "build the image first (`docker build`, `buildah build`), and name " +
		"it in `image`: docker-archive:FILE takes a file of `docker save`"},
	{"services.*.cap_add", honoured, "harmless ones are named, powers are refused"},
	{"services.*.cap_drop", honoured, "instances have no capability over the host"},
	{"services.*.cgroup", refused, "each instance has a cgroup of its own: leave it out"},
	{"services.*.cgroup_parent", named, leftOut + ": the cgroups are Pando's"},
	{"services.*.command", honoured, ""},
	{"services.*.configs", honoured, "`uid` and `gid` are named"},
	{"services.*.container_name", honoured, "another name of the service"},
	{"services.*.cpu_count", named, onWindows},
	{"services.*.cpu_percent", named, onWindows},
	{"services.*.cpu_period", honoured, "with cpu_quota: `cpus`"},
	{"services.*.cpu_quota", honoured, "`cpus`"},
	{"services.*.cpu_rt_period", named, shares},
	{"services.*.cpu_rt_runtime", named, shares},
	{"services.*.cpu_shares", named, shares},
	{"services.*.cpus", honoured, ""},
	{"services.*.cpuset", honoured, "`resources.cpuset`"},
	{"services.*.credential_spec", named, onWindows},
	{"services.*.depends_on", honoured, "`restart` of it is named"},
	{"services.*.deploy", honoured, "by its words"},
	{"services.*.deploy.endpoint_mode", named, leftOut + ": a service has a VIP, which the kernel " +
		"balances"},
	{"services.*.deploy.labels", unseen, "metadata of the service"},
	{"services.*.deploy.mode", honoured, "global is refused"},
	{"services.*.deploy.placement", honoured, ""},
	{"services.*.deploy.replicas", honoured, ""},
	{"services.*.deploy.resources", honoured, "by its words"},
	{"services.*.deploy.resources.limits", honoured, ""},
	{"services.*.deploy.resources.limits.devices", refused, noPrivileges},
	{"services.*.deploy.resources.limits.generic_resources", named, shares},
	{"services.*.deploy.resources.reservations", named, leftOut + ": Pando has limits only"},
	{"services.*.deploy.resources.reservations.devices", refused, "an instance has no GPU: leave it " +
		"out if the program runs without one, or run it without Pando"},
	{"services.*.deploy.restart_policy", named, leftOut + ": the back-off is Pando's"},
	{"services.*.deploy.restart_policy.condition", honoured, "`restart`"},
	{"services.*.deploy.rollback_config", named, leftOut + ": a failed rollout goes back by itself"},
	{"services.*.deploy.update_config", honoured, "`rollout`"},
	{"services.*.deploy.update_config.failure_action", named, leftOut + ": a failed rollout goes " +
		"back by itself"},
	{"services.*.deploy.update_config.max_failure_ratio", named, leftOut + ": one failed instance " +
		"ends a rollout"},
	{"services.*.develop", unseen, "`docker compose watch`"},
	{"services.*.device_cgroup_rules", refused, noPrivileges},
	{"services.*.devices", honoured, "grants"},
	{"services.*.dns", honoured, "resolvers of names beyond the project; addresses of the host, of VIPs " +
		"and of the project's networks are named"},
	{"services.*.dns_opt", honoured, ""},
	{"services.*.dns_search", honoured, "after the domain of the project"},
	{"services.*.dockerfile", refused, "build the image first, and name it in `image`"},
	{"services.*.domainname", honoured, "with hostname: the end of the name"},
	{"services.*.entrypoint", honoured, ""},
	{"services.*.env_file", honoured, ""},
	{"services.*.environment", honoured, ""},
	{"services.*.expose", honoured, "`ports`"},
	{"services.*.extends", honoured, "compose-go merges the service"},
	{"services.*.external_links", refused, "a service of another project is NAME.PROJECT.pando"},
	{"services.*.extra_hosts", honoured, "`host-gateway` needs `reach`, which a warning says"},
	{"services.*.gpus", refused, "an instance has no GPU: leave it out if the program runs without " +
		"one, or run it without Pando"},
	{"services.*.group_add", honoured, ""},
	{"services.*.healthcheck", honoured, "`health`"},
	{"services.*.hostname", honoured, ""},
	{"services.*.image", honoured, ""},
	{"services.*.init", honoured, ""},
	{"services.*.ipc", refused, "each instance has memory of its own: leave it out"},
	{"services.*.isolation", named, onWindows},
	{"services.*.label_file", honoured, "compose-go reads the files"},
	{"services.*.labels", honoured, ""},
	{"services.*.links", honoured, "another name of the linked service"},
	{"services.*.log_driver", named, "logs rotate on each host, and `pando logs` shows them"},
	{"services.*.log_opt", unseen, "logs rotate on each host"},
	{"services.*.logging", unseen, "logs rotate on each host"},
	{"services.*.logging.driver", named, "logs rotate on each host, and `pando logs` shows them"},
	{"services.*.mac_address", named, leftOut + ": an instance has an address of its own"},
	{"services.*.mem_limit", honoured, ""},
	{"services.*.mem_reservation", named, shares},
	{"services.*.mem_swappiness", named, noSwap},
	{"services.*.memswap_limit", named, noSwap},
	{"services.*.models", refused, "leave it out, and start the model yourself"},
	{"services.*.net", refused, ownNetwork},
	{"services.*.network_mode", refused, ownNetwork},
	{"services.*.networks", honoured, "the project is one network"},
	{"services.*.networks.*.aliases", honoured, "other names of the service"},
	{"services.*.networks.*.driver_opts", named, leftOut + ": the network is Pando's"},
	{"services.*.networks.*.gw_priority", named, leftOut + ": an instance has one way out"},
	{"services.*.networks.*.interface_name", named, leftOut + ": the interface of an instance is eth0"},
	{"services.*.networks.*.ipv4_address", named, "its address is left out: it is reached by its name"},
	{"services.*.networks.*.ipv6_address", named, "its address is left out: it is reached by its name"},
	{"services.*.networks.*.link_local_ips", named, leftOut + ": it is reached by its name"},
	{"services.*.networks.*.mac_address", named, leftOut + ": an instance has an address of its own"},
	{"services.*.networks.*.priority", unseen, "an instance has one network"},
	{"services.*.networks.*.use_service_name_alias", unseen, "a service always has its name"},
	{"services.*.oom_kill_disable", named, outOfMemory},
	{"services.*.oom_score_adj", named, outOfMemory},
	{"services.*.pid", refused, "each instance has processes of its own: leave it out"},
	{"services.*.pids_limit", honoured, ""},
	{"services.*.platform", named, leftOut + ": the image must have the architecture of the host"},
	{"services.*.ports", honoured, "`ports` of the VIP, and `publish` for the hosts' own addresses"},
	{"services.*.ports.app_protocol", unseen, "a hint for other tools"},
	{"services.*.ports.name", unseen, "a hint for readers"},
	{"services.*.ports.mode", unseen, "the hosts' ports lead to the instances of all hosts"},
	{"services.*.post_start", refused, "make it a part of the command"},
	{"services.*.pre_start", refused, "make it a service, and name it in `depends_on` with " +
		"condition: service_completed_successfully"},
	{"services.*.pre_stop", refused, "make it a part of the program's reaction to `stop_signal`"},
	{"services.*.privileged", refused, noPrivileges},
	{"services.*.profiles", honoured, "--profile, and COMPOSE_PROFILES"},
	{"services.*.provider", refused, "leave it out, and start it yourself"},
	{"services.*.pull_policy", unseen, "a deploy resolves the tag to a digest"},
	{"services.*.pull_refresh_after", unseen, "a deploy resolves the tag to a digest"},
	{"services.*.read_only", honoured, ""},
	{"services.*.restart", honoured, ""},
	{"services.*.runtime", refused, "leave it out"},
	{"services.*.scale", honoured, ""},
	{"services.*.secrets", honoured, "`uid`, `gid` and `mode` are named"},
	{"services.*.security_opt", honoured, "other options are named"},
	{"services.*.shm_size", honoured, "`tmpfs` at /dev/shm"},
	{"services.*.stdin_open", named, leftOut + ": the input of an instance is empty"},
	{"services.*.stop_grace_period", honoured, ""},
	{"services.*.stop_signal", honoured, ""},
	{"services.*.storage_opt", named, leftOut + ": what an instance writes beside its volumes is memory"},
	{"services.*.sysctls", honoured, "those of the whole host are refused"},
	{"services.*.tmpfs", honoured, ""},
	{"services.*.tty", named, leftOut + ": `pando exec -t` gives a terminal"},
	{"services.*.ulimits", honoured, "at most the host's own bound"},
	{"services.*.umask", honoured, ""},
	{"services.*.use_api_socket", refused, noPrivileges},
	{"services.*.user", honoured, ""},
	{"services.*.userns_mode", honoured, "host is the same word"},
	{"services.*.uts", refused, "each instance has a host name of its own: leave it out"},
	{"services.*.volume_driver", named, leftOut + ": volumes are folders of the host"},
	{"services.*.volumes", honoured, "`volumes`, `folders` and `tmpfs`"},
	{"services.*.volumes.bind.create_host_path", named, leftOut + ": make the folder on each host first"},
	{"services.*.volumes.bind.propagation", named, leftOut + ": later mounts of the host do not appear"},
	{"services.*.volumes.bind.recursive", named, leftOut + ": an instance sees the mounts below as well"},
	{"services.*.volumes.bind.selinux", unseen, "a label of the host's files"},
	{"services.*.volumes.consistency", unseen, "Docker itself ignores it on Linux"},
	{"services.*.volumes.image", refused, "copy the files into a named volume"},
	{"services.*.volumes.volume.labels", unseen, "metadata of the volume"},
	{"services.*.volumes.volume.nocopy", honoured, "a volume starts empty"},
	{"services.*.volumes.volume.subpath", refused, "a volume is mounted whole: drop subpath"},
	{"services.*.volumes_from", refused, "name the volumes in `volumes`"},
	{"services.*.working_dir", honoured, ""},
	{"services.*.x-*", unseen, "extensions are for other tools"},

	{"networks", honoured, "the project is one network"},
	{"networks.*.driver_opts", named, leftOut + ": the network is Pando's"},
	{"networks.*.driver", named, leftOut + ": the network is Pando's"},
	{"networks.*.enable_ipv4", named, leftOut + ": instances have addresses of both families"},
	{"networks.*.enable_ipv6", named, leftOut + ": instances have addresses of both families"},
	{"networks.*.external", named, leftOut + ": a service of another project is NAME.PROJECT.pando"},
	{"networks.*.internal", honoured, "`reach: [tenant]`"},
	{"networks.*.ipam", named, leftOut + ": the addresses are Pando's"},
	{"networks.*.attachable", unseen, "for containers outside the project"},
	{"networks.*.labels", unseen, "metadata of the network"},
	{"networks.*.name", unseen, "the network of the project is its tenant"},

	{"volumes", honoured, "`volumes`"},
	{"volumes.*.labels", unseen, "metadata of the volume"},
	{"secrets", honoured, "files of the hosts, or secrets of the store"},
	{"secrets.*.labels", unseen, "metadata of the secret"},
	{"secrets.*.driver", refused, "write its value into a file of the host, and name it with file:"},
	{"secrets.*.template_driver", refused, "write its value into a file of the host, and name it " +
		"with file:"},
	{"configs", honoured, "`configs`"},
	{"configs.*.labels", unseen, "metadata of the config"},
	{"configs.*.driver", refused, "name a file by `file`"},
}

// wordOf returns the line of a path, or of the nearest word above it.
func wordOf(path []string) (word, bool) {
	for n := len(path); n > 0; n-- {
		for _, w := range words {
			if covers(strings.Split(w.path, "."), path[:n]) {
				return w, true
			}
		}
	}
	return word{}, false
}

// covers reports whether a pattern is that of a path.
func covers(pattern, path []string) bool {
	return slices.EqualFunc(pattern, path, func(p, s string) bool {
		prefix, any := strings.CutSuffix(p, "*")
		return p == s || any && strings.HasPrefix(s, prefix)
	})
}

// words reports the words of the project that are left out, and those that are refused.
func (c *converter) words(model map[string]any) {
	for _, key := range sortedKeys(model) {
		named, ok := model[key].(map[string]any)
		if key != "services" || !ok {
			c.word([]string{key}, model[key])
			continue
		}
		for _, name := range sortedKeys(named) {
			service, _ := named[name].(map[string]any)
			if _, enabled := c.project.Services[name]; !enabled {
				continue
			}
			for _, word := range sortedKeys(service) {
				if !idle(word, service) {
					c.word([]string{"services", name, word}, service[word])
				}
			}
		}
	}
}

// word reports the words at and below a path.
func (c *converter) word(path []string, value any) {
	if value == nil || value == false {
		return
	}
	w, known := wordOf(path)
	if !known {
		c.deny(path, "a spec has no such word: leave it out")
		return
	}
	if deeper(w) && c.below(path, value) {
		return
	}
	switch at := path[:len(strings.Split(w.path, "."))]; w.treatment {
	case refused:
		c.deny(at, "%s", w.text)
	case named:
		if !defaultOf(path, value) {
			c.warn(at, "%s", w.text)
		}
	}
}

// below reports the words of a map, or of the maps of a list. It returns false for other values.
func (c *converter) below(path []string, value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			c.word(append(slices.Clone(path), key), v[key])
		}
		return true
	case []any:
		maps := false
		for _, one := range v {
			if m, ok := one.(map[string]any); ok {
				maps = c.below(path, m) || maps
			}
		}
		return maps
	}
	return false
}

// deeper reports whether words below a word have lines of their own.
func deeper(w word) bool {
	return slices.ContainsFunc(words, func(o word) bool { return strings.HasPrefix(o.path, w.path+".") })
}

// defaultOf reports whether the value of a word is what Pando does.
func defaultOf(path []string, value any) bool {
	switch v := fmt.Sprint(value); path[len(path)-1] {
	case "driver":
		return path[0] == "networks" && (v == "bridge" || v == "overlay" || v == "default" || v == "") ||
			path[0] == "services" && (v == "json-file" || v == "local" || v == "journald")
	case "log_driver":
		return v == "json-file" || v == "local" || v == "journald"
	case "endpoint_mode":
		return v == "vip"
	case "enable_ipv4", "enable_ipv6", "create_host_path":
		return v == "true"
	case "propagation":
		return v == "rprivate" || v == "private"
	case "recursive":
		return v == "enabled"
	case "isolation":
		return v == "default"
	case "failure_action":
		return v == "rollback"
	}
	return false
}

// idle reports whether Pando does already as the value of a service's word asks.
func idle(key string, service map[string]any) bool {
	v := service[key]
	if text := fmt.Sprint(v); v == nil || text == "false" || text == "[]" || text == "map[]" {
		return true
	}
	switch key {
	case "build": // the image is there already
		return service["image"] != nil
	case "network_mode":
		return v == "bridge" || v == "default" || v == "host" // host is a grant
	case "ipc":
		return v == "private" || v == "shareable"
	case "cgroup":
		return v == "private"
	case "oom_score_adj":
		return fmt.Sprint(v) == "0"
	case "memswap_limit": // memory and swap together
		return fmt.Sprint(v) == fmt.Sprint(service["mem_limit"])
	case "mem_swappiness":
		return fmt.Sprint(v) == "0" && service["mem_limit"] != nil
	case "runtime":
		return v == "runc" || v == pando.RuntimeCrun
	}
	return false
}
