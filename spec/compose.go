package spec

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

// foreign is a word of Compose or Kubernetes that a spec does not have, with its replacement here.
type foreign struct{ word, here string }

// foreigners are the unknown keys with an answer, by their place.
var foreigners = []foreign{
	{"services", "this is a Compose file: `pando convert FILE` prints its specs, and `pando deploy " +
		"FILE` takes it as it is"},
	{"version", "leave it out: the spec of Pando has no version"},
	{"build",
		"build it before the deploy, and name the result: `image: docker-archive:FILE` takes a " +
			"file of `docker save`"},
	{"devices", "instances have no device of the host"},
	{"healthcheck", "health.ready and health.live, such as health: {ready: http GET /ok}"},
	{"startupProbe", "health.startup, such as health: {startup: {probe: http GET /up, within: 5m}}"},
	{"readinessProbe", "health.ready, such as health: {ready: http GET /ok}"},
	{"livenessProbe", "health.live, such as health: {live: tcp 7000}"},
	{"depends_on", "`needs`, such as needs: {db: healthy}"},
	{"networks", "leave it out: every instance reaches every service by its name, such as db.pando"},
	{"network_mode", "leave it out: each instance has a network of its own"},
	{"domainname", "its full name in `hostname`, such as hostname: mail.example.com"},
	{"container_name", "`name`"},
	{"expose", "`ports`: other services reach the published ones"},
	{"deploy", "its parts are keys of their own: replicas is scale.min, resources.limits is " +
		"`resources`, update_config is `rollout`"},
	{"replicas", "scale.min, and scale.max for how many there may be"},
	{"privileged", "instances have no privileges"},
	{"cap_add", "instances have no capabilities"},
	{"mem_limit", "resources.memory"},
	{"cpus", "resources.cpus"},
	{"cpuset", "resources.cpuset"},
	{"stop_timeout", "`stop_grace_period`"},
	{"logging", "leave it out: logs rotate, and `pando logs` shows them"},
	{"scale.replicas", "scale.min, and scale.max for how many there may be"},
	{"scale.minReplicas", "scale.min"},
	{"scale.maxReplicas", "scale.max"},
	{"resources.limits", "its keys stand right below resources: {cpus: 0.5, memory: 64M}"},
	{"resources.requests", "leave it out: Pando has limits only"},
	{"resources.cpu", "resources.cpus"},
	{"health.test", "health.ready, such as ready: exec ./check"},
	{"health.retries", "health.fall"},
	{"health.start_period", "health.startup, such as startup: {probe: exec ./check, within: 2m}"},
	{"health.start_interval", "health.startup.interval"},
	{"rollout.parallelism", "rollout.surge"},
	{"rollout.monitor", "rollout.healthy"},
}

// insteadOf returns the replacement of a foreign key, or "".
func insteadOf(path string) string {
	for _, f := range foreigners {
		if f.word == path {
			return ": " + f.here
		}
	}
	return ""
}

// values are foreign values of known keys, with their form here.
var values = []struct {
	path, here string
	form       *regexp.Regexp
}{
	{"resources.memory", "write ${1}${2}: it is binary here already",
		regexp.MustCompile(`^([0-9.]+)([KMG])i$`)},
	{"restart", "write always: a service that was removed is not started again",
		regexp.MustCompile(`^unless-stopped$`)},
	{"restart", "write always", regexp.MustCompile(`^(any|Always)$`)},
	{"restart", "write on-failure", regexp.MustCompile(`^(on-failure:[0-9]+|OnFailure)$`)},
	{"restart", "write restart: no", regexp.MustCompile(`^(none|never|Never|false)$`)},
	{"scale.by",
		"cpu and memory are part of the score: write score",
		regexp.MustCompile(`^(cpu|memory|CPU)$`)},
}

var milli = regexp.MustCompile(`^([0-9]+)m$`)

// rewritten returns the form of a foreign value of a known key, or "".
func rewritten(path, value string) string {
	if m := milli.FindStringSubmatch(value); m != nil && path == "resources.cpus" {
		n, err := strconv.Atoi(m[1])
		if err == nil {
			return "; write " + strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
		}
	}
	for _, v := range values {
		if v.path == path && v.form.MatchString(value) {
			return "; " + v.form.ReplaceAllString(value, v.here)
		}
	}
	return ""
}

// possible reports errors from the root's check of specs that the kinds of the fields miss, such as
// a NUL in a word.
func (r *reader) possible(s pando.Spec, where map[string]ast.Node) {
	err := Check(s.WithDefaults())
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		text := strings.TrimPrefix(strings.TrimSpace(line), pando.ErrInvalid.Error()+": ")
		path, message, _ := strings.Cut(text, ": ")
		key := path
		if i := strings.IndexAny(key, "[."); i > 0 && where[key] == nil {
			key = key[:i]
		}
		r.at(where[key], path, "%s", message)
	}
}
