package spec

import (
	"reflect"
	"strings"

	"pando.run/pando"
)

// form is a set of forms of a service. A service has several, such as a job of an image.
type form uint8

const (
	ofProgram   form = 1 << iota // of the host, in no image
	ofImage                      // the files of an image
	ofStateful                   // kind: stateful
	ofJob                        // kind: job
	ofVM                         // kind: vm
	ofEndpoints                  // programs elsewhere
	ofPortless                   // no published port
	ofEqual                      // no kind
)

// column is one form with its name in the reference and the reason why a word has no effect there.
type column struct {
	form
	name, why string
}

var columns = []column{
	{ofEqual, "no kind", "has no effect without a kind: drop it"},
	{ofProgram, "program", "has no effect without an image: drop it, or name an image"},
	{ofImage, "image", "has no effect beside an image: drop one of them"},
	{ofStateful, "stateful", "has no effect in a stateful service: drop it"},
	{ofJob, "job", "has no effect in a job: drop it"},
	{ofVM, "vm", "has no effect in a virtual machine: put it into the machine, or drop it"},
	{ofEndpoints, "endpoints",
		"has no effect beside endpoints, which Pando does not start: drop one of them"},
	{ofPortless, "no ports", "has no effect without a published port: add ports, or drop it"},
}

// effect says in which forms a word has no effect, and why if that needs more than the column says.
// A row of a map, such as health, holds for all its words.
type effect struct {
	word string
	not  form
	why  string
}

const (
	runsToEnd     = "a job has `job: {parallel: N}` instead"
	noProbes      = "a job has no probes: its exit code counts"
	noConnections = "a job takes no connections: leave %s out"
	needsJob      = "needs `kind: job`"
	needsVM       = "has an effect with kind: vm alone"
	needsOrdinals = "have an effect with kind: stateful alone"
	notMeasured   = "has no effect beside endpoints: nothing measures a machine that Pando does not run"
	inTurn        = "has no effect in a stateful service: its ordinals change one at a time: drop it"
	allButJob     = ofEqual | ofStateful | ofVM | ofEndpoints
)

// effects has a row for every word of a spec. Parse and Check refuse a word in a form in which it
// has no effect; the reference shows the table. A test fails for a word without a row.
var effects = []effect{
	{"name", 0, ""},
	{"tenant", 0, ""},
	{"kind", ofEndpoints, ""},
	{"schedule", allButJob, needsJob},
	{"job", allButJob, needsJob},
	{"job.parallel", 0, ""},
	{"job.retries", 0, ""},
	{"job.deadline", 0, ""},
	{"job.zone", 0, ""},
	{"job.overlap", 0, ""},
	{"vm", ofEqual | ofStateful | ofJob | ofEndpoints, needsVM},
	{"vm.kernel", 0, ""},
	{"vm.initrd", 0, ""},
	{"vm.disk", 0, ""},
	{"vm.memory", 0, ""},
	{"vm.cpus", 0, ""},
	{"vm.append", 0, ""},
	{"hooks", ofEqual | ofJob | ofVM | ofEndpoints, needsOrdinals},
	{"hooks.bootstrap", 0, ""},
	{"hooks.recover", 0, ""},
	{"hooks.joined", 0, ""},
	{"hooks.quorum", 0, ""},
	{"hooks.timeout", 0, ""},
	{"image", ofVM | ofEndpoints, ""},
	{"bundle", ofVM | ofEndpoints, ""},
	{"bundle", ofImage, bundleInImage},
	{"entrypoint", ofVM | ofEndpoints, ""},
	{"entrypoint", ofProgram,
		"stands before the command of an image: put it in front of the words of `command`"},
	{"command", ofVM | ofEndpoints, ""},
	{"environment", ofVM | ofEndpoints, ""},
	{"env_file", ofVM | ofEndpoints, ""},
	{"working_dir", ofVM | ofEndpoints, ""},
	{"user", ofEndpoints, ""}, // of a machine: the user of its emulator
	{"stop_signal", ofEndpoints, ""},
	{"stop_grace_period", ofEndpoints, ""},
	{"restart", ofEndpoints, ""},
	{"restart", ofJob, "a job has `job: {retries: N}` instead"},
	{"ports", ofJob, strings.Replace(noConnections, "%s", "ports", 1)},
	{"publish.host", ofJob, strings.Replace(noConnections, "%s", "publish", 1)},
	{"publish.host", ofPortless, `the service has no ports: add ports, such as ["80:8080"]`},
	{"publish.exposed", ofProgram | ofVM | ofEndpoints, "without an image nothing is exposed: add ports"},
	{"publish.exposed", ofJob, strings.Replace(noConnections, "%s", "publish", 1)},
	{"endpoints", ofVM, ""},
	{"endpoints", ofPortless, "nothing is published: add ports, such as [80:8080]"},
	{"health", ofJob, noProbes},
	{"health.startup.probe", ofEndpoints, ""},
	{"health.startup.interval", ofEndpoints, ""},
	{"health.startup.timeout", ofEndpoints, ""},
	{"health.startup.within", ofEndpoints, ""},
	{"health.ready", 0, ""},
	{"health.live", 0, ""},
	{"health.interval", 0, ""},
	{"health.timeout", 0, ""},
	{"health.fall", 0, ""},
	{"health.ready_within", 0, ""},
	{"scale", ofJob, runsToEnd},
	{"scale.min", 0, ""},
	{"scale.max", 0, ""},
	{"scale.warm", ofEndpoints, ""},
	{"scale.warm", ofStateful, "an ordinal has volumes of its own, so it has no reserve: drop warm"},
	{"scale.rate", ofEndpoints, ""},
	{"scale.rate", ofStateful, "a stateful service has a fixed number of ordinals: drop rate"},
	{"scale.by", ofEndpoints, ""},
	{"scale.by", ofStateful, "ordinals do not come and go with traffic: drop by"},
	{"scale.target", ofEndpoints | ofStateful, ""},
	{"scale.up", ofEndpoints | ofStateful, ""},
	{"scale.down", ofEndpoints | ofStateful, ""},
	{"scale.quiet", ofEndpoints | ofStateful, ""},
	{"scale.ahead", ofEndpoints | ofStateful, ""},
	{"scale.idle", ofEndpoints | ofStateful, ""},
	{"scale.idle", ofPortless, "counts traffic of a published port, and there is none: add ports"},
	{"state", ofVM | ofEndpoints, ""},
	{"state", ofJob, "a job has no state of its own yet: leave state out"},
	{"resources.cpus", ofEndpoints, ""},
	{"resources.memory", ofEndpoints, ""},
	{"resources.pids", ofEndpoints, ""},
	{"resources.cpuset", ofEndpoints, ""},
	{"folders", ofVM | ofEndpoints, ""},
	{"volumes", ofVM | ofEndpoints, ""},
	{"tmpfs", ofVM | ofEndpoints, ""},
	{"read_only", ofVM | ofEndpoints, ""},
	{"secrets", ofVM | ofEndpoints, ""},
	{"configs", ofVM | ofEndpoints, ""},
	{"extra_hosts", ofVM | ofEndpoints, ""},
	{"aliases", ofJob, "a job has no name: drop them"},
	{"reach", ofEndpoints, ""},
	{"security_opt", ofEndpoints, ""},
	{"runtime", ofVM | ofEndpoints, ""},
	{"runtime", ofProgram, "crun runs images: name one with `image`, or leave runtime out"},
	{"userns_mode", ofEndpoints, ""},
	{"init", ofVM | ofEndpoints, ""},
	{"init", ofProgram, "a program of the host always has an init: drop it"},
	{"hostname", ofVM | ofEndpoints, ""},
	{"group_add", ofVM | ofEndpoints, ""},
	{"group_add", ofProgram, "a program of the host has the groups of its user: drop it"},
	{"ulimits", ofVM | ofEndpoints, ""},
	{"sysctls", ofVM | ofEndpoints, ""},
	{"sysctls", ofProgram, "settings of the kernel are for images: drop it"},
	{"umask", ofVM | ofEndpoints, ""},
	{"dns", ofVM | ofEndpoints, ""},
	{"dns_search", ofVM | ofEndpoints, ""},
	{"dns_opt", ofVM | ofEndpoints, ""},
	{"grants", ofEndpoints, ""},
	{"replicate", ofEndpoints, "endpoints are no program: drop replicate"},
	{"replicate", ofJob, "the instances of a job run to their end: drop replicate"},
	{"replicate", ofVM, "a virtual machine cannot be stored: drop replicate"},
	{"replicate", ofImage,
		"the program of an image cannot be stored yet: use a program of the host or a bundle"},
	{"replicate", ofStateful, "each instance has volumes of its own, and a copy has the files of the " +
		"first: drop replicate"},
	{"replicate.from", 0, ""},
	{"replicate.plain", 0, ""},
	{"rollout", ofJob, "a job has no rollout: its next run has the new spec: drop rollout"},
	{"rollout.order", 0, ""},
	{"rollout.surge", ofStateful, inTurn},
	{"rollout.healthy", 0, ""},
	{"rollout.canary", ofStateful, inTurn},
	{"rollout.canary", ofPortless,
		"is a share of connections, and the service publishes no port: add ports"},
	{"rollout.soak", ofStateful | ofPortless, ""},
	{"rollout.deadline", 0, ""},
	{"rollout.gate.metric", ofVM, "a machine has no socket to report a number by: drop gate"},
	{"rollout.gate.metric", ofEndpoints, notMeasured},
	{"rollout.gate.metric", ofStateful | ofPortless, ""},
	{"rollout.gate.worse_than", ofVM | ofEndpoints | ofStateful | ofPortless, ""},
	{"rollout.gate.above", ofVM | ofEndpoints | ofStateful | ofPortless, ""},
	{"place.spread", 0, ""},
	{"place.near", ofJob, "the instances of a job run where there is room: drop near, or use only"},
	{"place.only", 0, ""},
	{"place.apart", 0, ""},
	{"needs", 0, ""},
	{"balance", ofJob, "a job takes no connections: leave balance out"},
	{"balance", ofPortless, "no port is published, so there are no flows: add ports, or drop balance"},
	{"balance.by", 0, ""},
	{"balance.at", ofEndpoints,
		"connect has no effect beside endpoints, which are reached through the VIP: drop one of them"},
	{"balance.weights", ofEndpoints, notMeasured},
	{"balance.every", ofEndpoints, notMeasured},
	{"drain_max", ofJob, strings.Replace(noConnections, "%s", "drain_max", 1)},
	{"labels", 0, ""},
}

// formOf returns the forms of a spec.
func formOf(s pando.Spec) form {
	f := map[pando.ServiceKind]form{"": ofEqual, pando.Stateful: ofStateful, pando.KindJob: ofJob,
		pando.KindVM: ofVM}[s.Kind]
	switch {
	case len(s.Endpoints) > 0:
		f = f&^ofEqual | ofEndpoints
	case s.IsVM():
	case s.Image.Reference != "":
		f |= ofImage
	default:
		f |= ofProgram
	}
	if len(s.Ports) == 0 && !s.IsJob() {
		f |= ofPortless
	}
	return f
}

// useless returns why a word, or the map around it, has no effect in a spec of some forms. The path
// is that of the word or of the map. "": it has an effect.
func useless(word string, in form) (path, why string) {
	for _, e := range effects {
		if e.not&in == 0 || e.word != word && !strings.HasPrefix(word, e.word+".") {
			continue
		}
		if e.why != "" {
			return e.word, e.why
		}
		for _, c := range columns {
			if c.form&e.not&in != 0 {
				return e.word, c.why
			}
		}
	}
	return "", ""
}

// formConflicts returns the words of a spec that have no effect in its form, except for words with
// their default value. Stored specs have all defaults.
func formConflicts(s pando.Spec) (out []conflict) {
	in := formOf(s)
	// Defaults depend on these words. Those of defaults may differ: a job has a max of 1.
	bare := pando.Spec{Kind: s.Kind, Image: s.Image, Ports: s.Ports, Endpoints: s.Endpoints,
		Volumes: s.Volumes}
	if s.IsVM() {
		bare.VM = s.VM
	}
	once := bare.WithDefaults()
	defaults := []pando.Spec{once, once.WithDefaults()}
	said := map[string]bool{}
	leaves("", fields, func(word string, f field) {
		path, why := useless(word, in)
		if path == "" || said[path] || isDefault(f, s, defaults) {
			return
		}
		said[path] = true
		out = append(out, conflict{path, why})
	})
	return out
}

// isDefault reports whether a field has no value, or that of a default.
func isDefault(f field, s pando.Spec, defaults []pando.Spec) bool {
	v := f.get(s)
	if isEmptyValue(v) {
		return true
	}
	switch f.name {
	case "kind", "image", "ports", "endpoints", "volumes": // they make the form
		return false
	}
	for _, d := range defaults {
		if reflect.DeepEqual(v, f.get(d)) {
			return true
		}
	}
	return false
}

// leaves calls visit for each field of a table that has no fields of its own, with its path.
func leaves(prefix string, table []field, visit func(word string, f field)) {
	for _, f := range table {
		if f.fields != nil {
			leaves(prefix+f.name+".", f.fields, visit)
			continue
		}
		visit(prefix+f.name, f)
	}
}

// aloneConflicts returns the words of a spec that have no effect without another word.
func aloneConflicts(s pando.Spec) (out []conflict) {
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	in, h, d := formOf(s), s.Health, s.WithDefaults()
	// An image that is not resolved yet may bring a live probe.
	if s.Image.Reference == "" || s.Image.Digest != "" {
		const live = "has no effect without a live probe: add health.live, such as tcp 7000, or drop it"
		dead := in&ofJob == 0 && d.Health.Live.Kind == pando.ProbeExplicit
		add(dead && d.Health.Fall != 3, "health.fall", live)
		add(dead && d.Health.IntervalSeconds != 1, "health.interval", live)
		passive := dead && (h.Ready.Kind == pando.ProbeExplicit || h.Ready.Kind == pando.ProbeStarted)
		add(passive && d.Health.TimeoutSeconds != 1, "health.timeout",
			"has no effect without a probe: add health.ready or health.live, or drop it")
	}
	if in&(ofJob|ofEndpoints|ofStateful) == 0 {
		add(s.Scale.By == pando.ByNothing && d.Scale.QuietSeconds != 30, "scale.quiet",
			"has no effect without by, such as by: connections/s")
	}
	scores := s.Balance.Scored() || s.Scale.By == pando.ByScores
	measures := scores || s.Scale.By.Custom() || s.Rollout.Gate.Metric != ""
	if in&(ofJob|ofEndpoints|ofPortless) == 0 {
		own, usual := s.Balance.WithDefaults(), pando.Balance{}.WithDefaults()
		add(!scores && own.Weights != usual.Weights, "balance.weights",
			"have no effect without a score: add by: score or by: haven, or drop weights")
		add(!measures && own.EverySeconds != usual.EverySeconds, "balance.every",
			"has no effect without a measurement: add by: score or by: haven, or drop every")
	}
	return append(out, ownConflicts(s, in)...)
}

// ownConflicts returns values that have no effect in the form of a spec, of words that have one.
func ownConflicts(s pando.Spec, in form) (out []conflict) {
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	weights := map[int]bool{}
	for _, e := range s.Endpoints {
		weights[e.Weight] = true
	}
	elsewhere := in&ofEndpoints != 0
	add(elsewhere && s.Balance.Scored(), "balance.by", notMeasured+": use hash, least-flows or client")
	add(elsewhere && len(weights) > 1 && s.Balance.By == pando.ByRoundRobin, "balance.by",
		"round-robin takes the endpoints in turn, whatever their weights: use hash, or drop the weights")
	if in&ofVM != 0 {
		const noSocket = "a machine has no socket to report a number by: use connections/s, packets/s or " +
			"score"
		add(s.Scale.By.Custom(), "scale.by", noSocket)
		for _, p := range s.Health.Probes() {
			add(p.Kind == pando.ProbeExec, p.Key,
				"exec runs beside the emulator and not in the machine: use tcp or http")
		}
	}
	uid, _, _ := strings.Cut(s.User, ":")
	add(in&ofProgram != 0 && s.UsernsMode != "" && uid != "0" && uid != "root", "userns_mode",
		"has no effect for a program of the host that is not root: drop it, or write user: root")
	return out
}
