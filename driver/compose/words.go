package compose

import (
	"fmt"
	"slices"
	"strings"
)

// word is a word of a service that a spec does not have.
type word struct {
	name string
	text string // the advice
	deny bool   // the program needs it: an error
}

const (
	noPrivileges = "instances have no privileges: leave it out, or run this program without Pando"
	ownNetwork   = "each instance has a network of its own: publish its ports with `ports`"
	harmless     = "is left out"
)

// missing are the words of a service without a counterpart, by their path below the service. Any
// other word that the converter does not carry over is an error.
var missing = []word{
	{"build", "build the image first (`docker build`, `buildah build`), and name it in `image`: " +
		"docker-archive:FILE takes a file of `docker save`", true},
	{"privileged", noPrivileges, true},
	{"device_cgroup_rules", noPrivileges, true},
	{"gpus", noPrivileges, true},
	{"network_mode", ownNetwork, true},
	{"net", ownNetwork, true},
	{"pid", "each instance has processes of its own: leave it out", true},
	{"ipc", "each instance has memory of its own: leave it out", true},
	{"uts", "leave it out", true},
	{"cgroup", "leave it out", true},
	{"cgroup_parent", "leave it out", true},
	{"sysctls", "instances change no settings of the kernel: leave it out", true},
	{"volumes_from", "name the volumes in `volumes`", true},
	{"external_links", "a service of another project is NAME.PROJECT.pando", true},
	{"runtime", "leave it out", true},
	{"provider", "leave it out, and start it yourself", true},
	{"models", "leave it out, and start it yourself", true},
	{"use_api_socket", noPrivileges, true},
	{"credential_spec", "leave it out", true},
	{"pre_start", "make it a service, and name it in `depends_on` with " +
		"condition: service_completed_successfully", true},
	{"post_start", "make it a part of the command", true},
	{"pre_stop", "make it a part of the program's reaction to `stop_signal`", true},
	{"dns", "the name server is Pando's, which asks the host's: leave it out", true},
	{"group_add", "write user: UID:GID", true},

	{"dns_search", harmless + ": the names of the project come first", false},
	{"dns_opt", harmless, false},
	{"hostname", harmless + ": other services reach it by the name of the service", false},
	{"domainname", harmless, false},
	{"container_name", harmless + ": other services reach it by the name of the service", false},
	{"logging", harmless + ": logs rotate, and `pando logs` shows them", false},
	{"log_driver", harmless, false}, {"log_opt", harmless, false},
	{"tty", harmless + ": `pando exec -t` gives a terminal", false},
	{"stdin_open", harmless, false},
	{"shm_size", harmless + ": /dev/shm counts as memory of the instance", false},
	{"ulimits", harmless + ": the limits are the host's", false},
	{"platform", harmless + ": the image must have the architecture of the host", false},
	{"pull_policy", harmless + ": a deploy resolves the tag to a digest", false},
	{"pull_refresh_after", harmless, false},
	{"oom_score_adj", harmless, false}, {"oom_kill_disable", harmless, false},
	{"mem_reservation", harmless + ": Pando has limits only", false},
	{"memswap_limit", harmless, false}, {"mem_swappiness", harmless, false},
	{"cpu_shares", harmless, false}, {"cpu_quota", harmless, false}, {"cpu_period", harmless, false},
	{"cpu_percent", harmless, false}, {"cpu_count", harmless, false}, {"cpuset", harmless, false},
	{"cpu_rt_period", harmless, false}, {"cpu_rt_runtime", harmless, false},
	{"blkio_config", harmless, false}, {"storage_opt", harmless, false},
	{"mac_address", harmless, false}, {"isolation", harmless, false},
	{"userns_mode", harmless, false}, {"umask", harmless, false},
	{"volume_driver", harmless, false}, {"dockerfile", harmless, false},
	{"develop", harmless, false}, {"attach", harmless, false}, {"annotations", harmless, false},
	{"deploy.endpoint_mode", harmless, false},
	{"deploy.labels", harmless, false},
	{"deploy.rollback_config", harmless + ": a failed rollout goes back by itself", false},
	{"deploy.resources.reservations", harmless + ": Pando has limits only", false},
	{"deploy.restart_policy.delay", harmless + ": the back-off is Pando's", false},
	{"deploy.restart_policy.max_attempts", harmless + ": the back-off is Pando's", false},
	{"deploy.restart_policy.window", harmless + ": the back-off is Pando's", false},
	{"deploy.update_config.failure_action", harmless + ": a failed rollout goes back by itself",
		false},
	{"deploy.update_config.max_failure_ratio", harmless, false},
}

// known are the words of a service that the converter carries over, or that change nothing here.
var known = []string{
	"image", "command", "entrypoint", "environment", "env_file", "ports", "expose", "depends_on",
	"secrets", "user", "working_dir", "cap_drop", "security_opt", "healthcheck", "deploy",
	"stop_signal", "stop_grace_period", "restart", "profiles", "labels", "scale", "networks", "links",
	"mem_limit", "cpus", "pids_limit", "init", "extends", "volumes", "tmpfs", "read_only",
	"configs", "cap_add", "devices", "extra_hosts",
}

// words reports the words of all services that a spec does not have.
func (c *converter) words(model map[string]any) {
	services, _ := model["services"].(map[string]any)
	for _, name := range sortedKeys(services) {
		if _, enabled := c.project.Services[name]; !enabled {
			continue
		}
		words, _ := services[name].(map[string]any)
		for _, key := range sortedKeys(words) {
			if !strings.HasPrefix(key, "x-") {
				c.word(name, words, key)
			}
		}
		for _, w := range missing {
			if path := strings.Split(w.name, "."); len(path) > 1 && within(words, path) {
				c.report(w, append([]string{"services", name}, path...))
			}
		}
	}
}

// word reports one word of a service, if a spec does not have it.
func (c *converter) word(service string, words map[string]any, key string) {
	if slices.Contains(known, key) || idle(key, words) {
		return
	}
	path := []string{"services", service, key}
	for _, w := range missing {
		if w.name == key {
			c.report(w, path)
			return
		}
	}
	c.deny(path, "a spec has no such word: leave it out")
}

func (c *converter) report(w word, path []string) {
	if w.deny {
		c.deny(path, "%s", w.text)
	} else {
		c.warn(path, "%s", w.text)
	}
}

// idle reports whether Pando does already as the value of a word asks.
func idle(key string, words map[string]any) bool {
	v := words[key]
	if text := fmt.Sprint(v); v == nil || text == "false" || text == "[]" || text == "map[]" {
		return true
	}
	switch key {
	case "build": // the image is there already
		return words["image"] != nil
	case "network_mode":
		return v == "bridge" || v == "host" // host is a grant
	case "ipc":
		return v == "private" || v == "shareable"
	case "cgroup":
		return v == "private"
	case "runtime":
		return v == "runc" || v == "crun"
	}
	return false
}

// within reports whether a map has a word at a path.
func within(m map[string]any, path []string) bool {
	for _, key := range path[:len(path)-1] {
		m, _ = m[key].(map[string]any)
	}
	return m[path[len(path)-1]] != nil
}
