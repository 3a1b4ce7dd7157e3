package spec

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"pando.run/pando"
)

// field is one key of a spec. All descriptions of the key are made from it.
type field struct {
	name     string
	doc      string
	def      string // default, in words
	example  string // YAML
	required bool
	kind     kind
	set      func(*pando.Spec, any)
	get      func(pando.Spec) any // for Format; nil or a zero value: not printed
	fields   []field              // of a map
}

func find(table []field, name string) (field, bool) {
	i := slices.IndexFunc(table, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return table[i], true
}

func names(table []field) string {
	out := make([]string, len(table))
	for i, f := range table {
		out[i] = f.name
	}
	return strings.Join(out, ", ")
}

const commandDoc = "Program and arguments. A string is split as a shell splits it, without " +
	"expansions."

var fields = []field{
	{name: "name", doc: "Name of the service; it answers as NAME.pando.", example: "website",
		required: true, kind: labelKind("service"),
		set: func(s *pando.Spec, v any) { s.Name = pando.ServiceName(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Name) }},
	{name: "tenant", doc: "Owner of the service.", def: "default", example: "shop",
		kind: labelKind("tenant"),
		set:  func(s *pando.Spec, v any) { s.Tenant = pando.Tenant(v.(string)) },
		get:  func(s pando.Spec) any { return string(s.Tenant) }},
	{name: "kind", doc: "job: its instances run to their end, in runs. A deploy of a new spec " +
		"starts a run, or a schedule does. stateful: the instances are ordinals, each with a name " +
		"such as db-0, a host and volumes of its own. They start, change and end one at a time. " +
		"vm: each instance is a virtual machine.",
		def: "instances that equal each other", example: "stateful",
		kind: enumKind(string(pando.KindJob), string(pando.Stateful), string(pando.KindVM)),
		set:  func(s *pando.Spec, v any) { s.Kind = pando.ServiceKind(v.(string)) },
		get:  func(s pando.Spec) any { return string(s.Kind) }},
	{name: "schedule", doc: "Times at which a job runs, as five words of cron.",
		def: "at each deploy of a new spec", example: `"*/5 * * * *"`, kind: scheduleKind,
		set: func(s *pando.Spec, v any) { s.Job.Schedule = v.(string) },
		get: func(s pando.Spec) any { return s.Job.Schedule }},
	{name: "job", doc: "The runs of a job.", fields: jobFields},
	{name: "vm", doc: "The virtual machine of each instance, with kind: vm.", fields: vmFields},
	{name: "hooks", doc: "Commands for the steps in the life of a stateful service, inside the " +
		"instance.", fields: hookFields},
	{name: "image",
		doc: "Files of the program: NAME[:TAG][@DIGEST] of a registry, oci:FOLDER[:TAG] or " +
			"docker-archive:FILE. A deploy resolves a tag to a digest, so every host runs the same bytes.",
		def: "the host's own files", example: "shop/web:1.2", kind: imageKind,
		set: func(s *pando.Spec, v any) { s.Image.Reference = v.(string) },
		get: func(s pando.Spec) any { return s.Image.Reference }},
	{name: "bundle", doc: "Folder that a deploy sends to every host that runs an instance, relative " +
		"to the file. Instances see it read-only at its path.", def: "every host has the program " +
		"already", example: ".", kind: pathKind,
		set: func(s *pando.Spec, v any) { s.Bundle.Folder = v.(string) },
		get: func(s pando.Spec) any { return s.Bundle.Folder }},
	{name: "entrypoint", doc: "Words before `command`, instead of the image's. The image's command " +
		"goes with them.", def: "the image's", example: "[/app/start]", kind: commandKind,
		set: func(s *pando.Spec, v any) { s.Entrypoint = v.([]string) },
		get: func(s pando.Spec) any { return s.Entrypoint }},
	{name: "command", doc: commandDoc, def: "required, but for an image with one",
		example: `["./website", "-v"]`, kind: commandKind,
		set: func(s *pando.Spec, v any) { s.Command = v.([]string) },
		get: func(s pando.Spec) any { return s.Command }},
	{name: "environment", doc: "Variables of the program, as a map or as a list of KEY=value.",
		example: "{LOG: debug}", kind: pairsKind,
		set: func(s *pando.Spec, v any) {
			s.Environment = underneath(v.(map[string]string), s.Environment)
		},
		get: func(s pando.Spec) any { return s.Environment }},
	{name: "env_file", doc: "Files with variables, which a deploy reads beside the spec: lines of " +
		"KEY=value. `environment` comes before them, and a later file before an earlier one.",
		example: "[./common.env, ./web.env]", kind: envFileKind,
		set: func(s *pando.Spec, v any) {
			s.Environment = underneath(s.Environment, v.(map[string]string))
		},
		get: func(pando.Spec) any { return "" }},
	{name: "working_dir", doc: "Directory in which the program starts, relative to the file. All " +
		"instances on a host share it. A program that needs it for itself sets `scale: {max: 1}`.",
		def: "the bundle's, the file's, or the image's", example: "./site", kind: pathKind,
		set: func(s *pando.Spec, v any) { s.WorkingDir = v.(string) },
		get: func(s pando.Spec) any { return s.WorkingDir }},
	{name: "user", doc: "User of the program: a name, a uid or uid:gid.",
		def: "an unprivileged uid of its own, or the image's", example: "www-data", kind: userKind,
		set: func(s *pando.Spec, v any) { s.User = v.(string) },
		get: func(s pando.Spec) any { return s.User }},
	{name: "stop_signal", doc: "Signal that asks the program to end. SIGPWR, " +
		"the power button, is the default of a virtual machine.", def: "SIGTERM",
		example: "SIGQUIT", kind: signalKind,
		set: func(s *pando.Spec, v any) { s.StopSignal = v.(string) },
		get: func(s pando.Spec) any { return s.StopSignal }},
	{name: "stop_grace_period", doc: "Time for the program to end before it is killed.", def: "10s",
		example: "30s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.StopSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.StopSeconds) }},
	{name: "restart", doc: "Whether an instance that exited is replaced.", def: "always",
		example: "on-failure", kind: enumKind("always", "on-failure", "no"),
		set: func(s *pando.Spec, v any) { s.Restart = pando.RestartPolicy(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Restart) }},
	{name: "ports", doc: "Published ports: PUBLISHED:TARGET with an optional /udp, one number for " +
		"both, or {target, published, protocol}.", example: `["80:8080"]`, kind: portsKind,
		set: func(s *pando.Spec, v any) { s.Ports = append(v.([]pando.Port), s.Ports...) },
		get: func(s pando.Spec) any { return portTexts(s.Ports) }},
	{name: "publish", doc: "Ways to the service beside its VIP.", fields: publishFields},
	{name: "endpoints", doc: "Ports of machines or programs that Pando did not start, in place of a " +
		"program: ADDRESS:PORT, with an optional weight of 1 to 100. Their clients use the VIP.",
		example: `["192.0.2.7:8080", "192.0.2.8:8080 weight 50"]`, kind: externalsKind,
		set: func(s *pando.Spec, v any) { s.Endpoints = v.([]pando.External) },
		get: func(s pando.Spec) any { return externalTexts(s.Endpoints) }},
	{name: "health", doc: "How an instance shows that it may take traffic, and that it still can.",
		fields: healthFields},
	{name: "scale", doc: "The number of instances, and the source of the asks.", fields: scaleFields},
	{name: "state", doc: "Merge type of each path of the service's state: counter, set, append-log, " +
		"last-writer-wins or opaque. `copies: N` keeps every commit on N hosts.",
		example: "{hits: counter, access.log: append-log}", kind: stateKind,
		set: func(s *pando.Spec, v any) { s.State, s.StateCopies = v.(stated).types, v.(stated).copies },
		get: func(s pando.Spec) any { return stateWords(s) }},
	{name: "resources", doc: "Limits of one instance.", fields: resourceFields},
	{name: "folders", doc: "Folders and files of the host that the instances see: PATH, or " +
		"PATH:PATH_IN_THE_INSTANCE, read-only without :rw. Programs of the host always see the " +
		"system's own and working_dir.",
		example: `["/srv/fonts", "./web.conf:/etc/web.conf", "./data:/data:rw"]`, kind: foldersKind,
		set: func(s *pando.Spec, v any) { s.Folders = v.([]pando.Folder) },
		get: func(s pando.Spec) any { return folderTexts(s.Folders) }},
	{name: "volumes", doc: "Folders that outlive the instances: NAME:PATH, with :ro, :shared or " +
		":size=20g. Each instance has its own, by its ordinal. A shared volume is one folder of all " +
		"instances. :of=SERVICE is the shared volume of another service, on whose host the instances " +
		"run. A tenant's volume without a size has at most 10 GiB.",
		example: `["data:/var/lib/valkey:size=20g"]`, kind: volumesKind,
		set: func(s *pando.Spec, v any) { s.Volumes = v.([]pando.Volume) },
		get: func(s pando.Spec) any { return volumeTexts(s.Volumes) }},
	{name: "tmpfs", doc: "Empty folders in memory for each instance: PATH, with " +
		":size=64m,mode=1777,noexec.", example: `["/var/cache/web:size=16m"]`, kind: tmpfsKind,
		set: func(s *pando.Spec, v any) { s.Tmpfs = v.([]pando.Tmpfs) },
		get: func(s pando.Spec) any { return tmpfsTexts(s.Tmpfs) }},
	{name: "read_only", doc: "Whether the files of the image, or working_dir, are read-only. " +
		"Volumes and folders in memory stay writable.", def: "false", example: "true",
		kind: boolKind,
		set:  func(s *pando.Spec, v any) { s.ReadOnly = v.(bool) },
		get:  func(s pando.Spec) any { return s.ReadOnly }},
	{name: "secrets", doc: "Secrets that the program finds in /run/secrets under these names: a " +
		"list of names of the store (`pando secret set`), or a map. A value is {on_change: SIGNAL}, {} " +
		"or a file of the host.",
		example: "{db-password: {on_change: SIGHUP}, token: /etc/shop/token}", kind: secretsKind,
		set: func(s *pando.Spec, v any) {
			s.Secrets, s.StoredSecrets = v.(secretWords).files, v.(secretWords).stored
		},
		get: func(s pando.Spec) any { return secretTexts(s) }},
	{name: "configs", doc: "Files that the program finds in /run/configs under these names. A value " +
		"is a file beside the spec, or a map: file or content, template (true: it sees services, " +
		"secrets and the spec), target (a second path of it), mode, check (a command that accepts a " +
		"new content, where {} is its path) and on_change (a signal after a change).",
		example: "{haproxy.cfg: {file: ./haproxy.cfg, template: true, check: \"haproxy -c -f {}\", " +
			"on_change: SIGUSR2}}", kind: configsKind,
		set: func(s *pando.Spec, v any) { s.Configs = v.([]pando.Config) },
		get: func(s pando.Spec) any { return configList(s.Configs) }},
	{name: "aliases", doc: "Further names by which programs of the tenant reach the service.",
		example: "[db.internal, web_app]", kind: aliasesKind,
		set: func(s *pando.Spec, v any) { s.Aliases = v.([]string) },
		get: func(s pando.Spec) any { return s.Aliases }},
	{name: "extra_hosts", doc: "Names with addresses in /etc/hosts of the instances, as a map or " +
		"as a list of NAME=ADDRESS.", example: "{printer.lan: 192.0.2.9}", kind: pairsKind,
		set: func(s *pando.Spec, v any) { s.ExtraHosts = v.(map[string]string) },
		get: func(s pando.Spec) any { return s.ExtraHosts }},
	{name: "reach", doc: "Parts of the network that the instances may open connections to: " +
		"internet, tenants (services of other tenants), host (ports of their own host), metadata (of a " +
		"cloud), or tenant alone. Services of their own tenant are always in reach.",
		def: "internet", example: "[internet, host]", kind: reachKind,
		set: func(s *pando.Spec, v any) { s.Reach = v.([]pando.Reach) },
		get: func(s pando.Spec) any { return reachTexts(s.Reach) }},
	{name: "security_opt", doc: "Walls to lift: seccomp=unconfined allows every system call, also " +
		"of 32-bit programs.", def: "none", example: "[seccomp=unconfined]", kind: securityKind,
		set: func(s *pando.Spec, v any) { s.SecurityOpt = v.([]string) },
		get: func(s pando.Spec) any { return s.SecurityOpt }},
	{name: "runtime", doc: "crun: crun of the host starts the program of the image, instead of " +
		"Pando. Each host has it.", def: "Pando itself", example: "crun",
		kind: enumKind(pando.RuntimeCrun),
		set:  func(s *pando.Spec, v any) { s.Runtime = v.(string) },
		get:  func(s pando.Spec) any { return s.Runtime }},
	{name: "userns_mode", doc: "host: root and the users of an image are the host's. Without it, a " +
		"service of root or of an image has users of its own: they own nothing of the host.",
		def: "users of its own", example: "host", kind: enumKind(pando.UsernsHost),
		set: func(s *pando.Spec, v any) { s.UsernsMode = v.(string) },
		get: func(s pando.Spec) any { return s.UsernsMode }},
	{name: "init", doc: "Whether an init of Pando is PID 1, which reaps orphans. Without it the " +
		"program of an image is PID 1 itself: a signal that it does not handle has no effect on it. " +
		"Programs of the host always have the init.", def: "false", example: "true", kind: boolKind,
		set: func(s *pando.Spec, v any) { s.Init = v.(bool) },
		get: func(s pando.Spec) any { return s.Init }},
	{name: "hostname", doc: "The name of the machine that the program of every instance sees, also " +
		"in /etc/hosts. Programs that name their data by it find them again after a restart.",
		def:     "NAME-0 and so on where instances have a volume of their own, else the ID of the instance",
		example: "mail.example.com", kind: hostnameKind,
		set: func(s *pando.Spec, v any) { s.Hostname = v.(string) },
		get: func(s pando.Spec) any { return s.Hostname }},
	{name: "group_add", doc: "Further groups of the user of the image: names or numbers of its " +
		"/etc/group.", example: `["video", "2000"]`, kind: groupsKind,
		set: func(s *pando.Spec, v any) { s.GroupAdd = v.([]string) },
		get: func(s pando.Spec) any { return s.GroupAdd }},
	{name: "ulimits", doc: "Bounds of each process, as a map of SOFT:HARD or of one number for both; " +
		"-1 is the largest. None exceeds the bound that Pando itself has on the host.",
		def: "the host's", example: `{nofile: "1024:65536", core: 0}`, kind: pairsKind,
		set: func(s *pando.Spec, v any) { s.Ulimits = v.(map[string]string) },
		get: func(s pando.Spec) any { return s.Ulimits }},
	{name: "sysctls", doc: "Settings of the kernel that each instance has for itself: net.*, " +
		"fs.mqueue.*, kernel.msg*, kernel.shm* and kernel.sem.", def: "the host's",
		example: "{net.core.somaxconn: 1024}", kind: pairsKind,
		set: func(s *pando.Spec, v any) { s.Sysctls = v.(map[string]string) },
		get: func(s pando.Spec) any { return s.Sysctls }},
	{name: "umask", doc: "The mask of the modes of new files, in octal digits.", def: "0022",
		example: `"0027"`, kind: umaskKind,
		set: func(s *pando.Spec, v any) { s.Umask = v.(string) },
		get: func(s pando.Spec) any { return s.Umask }},
	{name: "dns", doc: "Addresses of resolvers for names beyond Pando's own. The name server of the " +
		"host asks them for the instances.", def: "the host's", example: "[192.0.2.53]",
		kind: resolversKind,
		set:  func(s *pando.Spec, v any) { s.DNS = v.([]string) },
		get:  func(s pando.Spec) any { return s.DNS }},
	{name: "dns_search", doc: "Domains that complete short names, after those of the tenant.",
		def: "the host's", example: "[corp.example]", kind: domainsKind,
		set: func(s *pando.Spec, v any) { s.DNSSearch = v.([]string) },
		get: func(s pando.Spec) any { return s.DNSSearch }},
	{name: "dns_opt", doc: "Options of the resolver, as in resolv.conf.", def: "the host's",
		example: `["ndots:2"]`, kind: dnsOptionsKind,
		set: func(s *pando.Spec, v any) { s.DNSOptions = v.([]string) },
		get: func(s pando.Spec) any { return s.DNSOptions }},
	{name: "grants", doc: "Parts of the host that the instances need, as a list: `device: NAME` " +
		"of /dev, `path: PATH:ro` (or :rw) at the same path, and `netns: host` for the network of the " +
		"host. A host gives them only if its owner allows that (`pando hosts allow`). Until one does, " +
		"the service waits.", def: "none", example: `[device: kvm, "path=/proc/modules:ro"]`,
		kind: grantsKind,
		set:  func(s *pando.Spec, v any) { s.Grants = v.([]pando.Grant) },
		get:  func(s pando.Spec) any { return grantWords(s.Grants) }},
	{name: "replicate", doc: "The beginning of new instances.", fields: replicateFields},
	{name: "rollout", doc: "How a new revision takes over.", fields: rolloutFields},
	{name: "place", doc: "The hosts on which the instances run.", fields: placeFields},
	{name: "needs", doc: "Services of the same tenant that must be started, healthy or completed " +
		"before a new revision starts, as a map or as a list (each then started). Instances that run " +
		"already need nothing.",
		def: "none", example: "{db: healthy, migrate: completed}", kind: needsKind,
		set: func(s *pando.Spec, v any) { s.Needs = v.(map[pando.ServiceName]pando.Need) },
		get: func(s pando.Spec) any { return needTexts(s.Needs) }},
	{name: "balance", doc: "The choice of the instance for each new flow.", fields: balanceFields},
	{name: "drain_max", doc: "End the connections of an instance that leaves after this long. none: " +
		"wait for the last one.",
		def: "10m", example: "30s", kind: drainKind,
		set: func(s *pando.Spec, v any) { s.DrainSecondsMax = v.(float64) },
		get: func(s pando.Spec) any {
			if s.DrainSecondsMax == pando.DrainForever {
				return endless
			}
			return duration(s.DrainSecondsMax)
		}},
	{name: "labels", doc: "Words of your own, as a map or as a list of KEY=value.",
		example: "{team: web}", kind: pairsKind,
		set: func(s *pando.Spec, v any) { s.Labels = v.(map[string]string) },
		get: func(s pando.Spec) any { return s.Labels }},
}

var publishFields = []field{
	{name: "host", doc: "Ports of the hosts' own addresses that lead to published ports: HOST or " +
		"HOST:PUBLISHED, with an optional /udp; one or a list. A client's address stays.",
		def: "the VIP alone", example: `[443, "8080:80"]`, kind: hostPortsKind,
		set: func(s *pando.Spec, v any) { s.Ports = append(s.Ports, v.([]pando.Port)...) },
		get: func(s pando.Spec) any { return hostPortTexts(s.Ports) }},
	{name: "exposed", doc: "Whether the VIP has the ports that the image exposes as well. No probe asks " +
		"them.", def: "false", example: "true", kind: boolKind,
		set: func(s *pando.Spec, v any) { s.Exposed = v.(bool) },
		get: func(s pando.Spec) any { return s.Exposed }},
}

var startupFields = []field{
	{name: "probe", doc: "Probe of a program that starts slowly. `health.ready` and `health.live` " +
		"are asked once it has succeeded.", def: "none", example: "exec ./migrated", kind: probeKind,
		set: func(s *pando.Spec, v any) { s.Health.Startup.Probe = v.(pando.Probe) },
		get: func(s pando.Spec) any { return probeText(s.Health.Startup.Probe) }},
	{name: "interval", doc: "Longest time between two startup probes. The first ones follow sooner.",
		def: "50ms", example: "2s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Health.Startup.IntervalSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Health.Startup.IntervalSeconds) }},
	{name: "timeout", doc: "Time limit of one startup probe.", def: "1s", example: "5s",
		kind: durationKind,
		set:  func(s *pando.Spec, v any) { s.Health.Startup.TimeoutSeconds = v.(float64) },
		get:  func(s pando.Spec) any { return duration(s.Health.Startup.TimeoutSeconds) }},
	{name: "within", doc: "An instance without a success of its startup probe by then has failed. " +
		"`health.ready_within` begins at its success.", def: "5m", example: "20m", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Health.Startup.SecondsMax = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Health.Startup.SecondsMax) }},
}

var healthFields = []field{
	{name: "startup", doc: "How an instance shows that its start is over.", fields: startupFields},
	{name: "ready", doc: "Probe after which an instance takes traffic. started: as soon as its " +
		"program runs.", def: "the program reports it",
		example: "http GET /ok", kind: probeKind,
		set: func(s *pando.Spec, v any) { s.Health.Ready = v.(pando.Probe) },
		get: func(s pando.Spec) any { return probeText(s.Health.Ready) }},
	{name: "live", doc: "Probe that a serving instance must keep answering. A failing instance is " +
		"drained and replaced: at most a quarter of a service at once, never the last.",
		def: "none: only its exit counts", example: "tcp 7000", kind: probeKind,
		set: func(s *pando.Spec, v any) { s.Health.Live = v.(pando.Probe) },
		get: func(s pando.Spec) any { return probeText(s.Health.Live) }},
	{name: "interval", doc: "Time between two live probes.", def: "1s", example: "2s",
		kind: durationKind,
		set:  func(s *pando.Spec, v any) { s.Health.IntervalSeconds = v.(float64) },
		get:  func(s pando.Spec) any { return duration(s.Health.IntervalSeconds) }},
	{name: "timeout", doc: "Time limit of one probe.", def: "1s", example: "500ms", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Health.TimeoutSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Health.TimeoutSeconds) }},
	{name: "fall", doc: "Live probes that fail in a row before an instance is unhealthy.", def: "3",
		example: "5", kind: integerKind(1, math.MaxInt32),
		set: func(s *pando.Spec, v any) { s.Health.Fall = v.(int) },
		get: func(s pando.Spec) any { return s.Health.Fall }},
	{name: "ready_within", doc: "An instance that is not ready by then has failed to start.",
		def: "30s", example: "5s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Health.ReadySecondsMax = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Health.ReadySecondsMax) }},
}

// literal is a value that Format prints as it is, also where it looks like the absence of one.
type literal string

var scaleFields = []field{
	{name: "min", doc: "At least this many instances. With 0, the service starts without one, and " +
		"its last one may leave: `pando scale NAME N` starts some.", def: "1", example: "1",
		kind: integerKind(0, InstancesMax),
		set: func(s *pando.Spec, v any) {
			s.Scale.Min = v.(int)
			s.Scale.Zero = s.Scale.Min == 0
		},
		get: func(s pando.Spec) any {
			if s.Scale.Zero {
				return literal("0")
			}
			return s.Scale.Min
		}},
	{name: "max", doc: "At most this many instances. `max: 1` makes a rollout stop-first, and a pin " +
		"cannot exceed it.", def: "min", example: "8", kind: integerKind(1, InstancesMax),
		set: func(s *pando.Spec, v any) { s.Scale.Max = v.(int) },
		get: func(s pando.Spec) any { return s.Scale.Max }},
	{name: "warm", doc: "Fully started, stopped instances in reserve.", def: "0", example: "1",
		kind: integerKind(0, InstancesMax),
		set:  func(s *pando.Spec, v any) { s.Scale.Warm = v.(int) },
		get:  func(s pando.Spec) any { return s.Scale.Warm }},
	{name: "rate", doc: "New instances per second at most.", def: "no limit", example: "10/s",
		kind: rateKind,
		set:  func(s *pando.Spec, v any) { s.Scale.RatePerSecond = v.(float64) },
		get:  func(s pando.Spec) any { return rateText(s.Scale.RatePerSecond) }},
	{name: "by",
		doc: "Let Pando scale: by connections/s, packets/s or a number of the application such as " +
			"queue_depth, each with a target, or by score with up and down. Or {metric, target}.",
		def: "the application asks, or you", example: "connections/s", kind: byKind,
		set: func(s *pando.Spec, v any) {
			by := v.(byValue)
			s.Scale.By = by.metric
			if by.target > 0 {
				s.Scale.Target = by.target
			}
		},
		get: func(s pando.Spec) any { return metricText(s.Scale.By) }},
	{name: "target", doc: "Value of the metric of `by`, per instance.", example: "100",
		kind: numberKind,
		set:  func(s *pando.Spec, v any) { s.Scale.Target = v.(float64) },
		get:  func(s pando.Spec) any { return s.Scale.Target }},
	{name: "up", doc: "With `by: score`: the best score from which an instance is added.",
		def: "0.6", example: "0.5", kind: numberKind,
		set: func(s *pando.Spec, v any) { s.Scale.Up = v.(float64) },
		get: func(s pando.Spec) any { return s.Scale.Up }},
	{name: "down", doc: "With `by: score`: an instance leaves while most scores are below.",
		def: "0.1", example: "0.05", kind: numberKind,
		set: func(s *pando.Spec, v any) { s.Scale.Down = v.(float64) },
		get: func(s pando.Spec) any { return s.Scale.Down }},
	{name: "quiet", doc: "Time of load below target before an instance leaves.", def: "30s",
		example: "1m", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Scale.QuietSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Scale.QuietSeconds) }},
	{name: "ahead", doc: "Time for which the load of `by` is forecast, up to 10m. A ramp starts " +
		"its instances that much earlier.", def: "no forecast", example: "30s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Scale.AheadSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Scale.AheadSeconds) }},
	{name: "idle", doc: "With `min: 0`: time without packets and connections after which the last " +
		"instance leaves. The next packet starts one.", def: "traffic starts and stops no instance",
		example: "60s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Scale.IdleSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Scale.IdleSeconds) }},
}

var resourceFields = []field{
	{name: "cpus", doc: "Processor time, in cores.", def: "no limit", example: "0.5", kind: numberKind,
		set: func(s *pando.Spec, v any) { s.Resources.CPUs = v.(float64) },
		get: func(s pando.Spec) any { return s.Resources.CPUs }},
	{name: "memory", doc: "Memory, in bytes or with b, k, m or g (of 1024).",
		def:     "three quarters of the host's",
		example: "64M", kind: bytesKind,
		set: func(s *pando.Spec, v any) { s.Resources.MemoryBytes = v.(int64) },
		get: func(s pando.Spec) any { return s.Resources.MemoryBytes }},
	{name: "pids", doc: "Processes and threads.", def: strconv.Itoa(pando.PIDsDefault), example: "100",
		kind: integerKind(1, math.MaxInt32),
		set:  func(s *pando.Spec, v any) { s.Resources.PIDs = int64(v.(int)) },
		get:  func(s pando.Spec) any { return s.Resources.PIDs }},
	{name: "cpuset", doc: "The processors that the instance may use, by their numbers on its host.",
		def: "all", example: `"0-3,7"`, kind: cpusetKind,
		set: func(s *pando.Spec, v any) { s.Resources.CPUSet = v.(string) },
		get: func(s pando.Spec) any { return s.Resources.CPUSet }},
}

var placeFields = []field{
	{name: "spread", doc: "Put each instance where the fewest of the service run: host, or the name " +
		"of a label of the hosts, such as zone. Its values take turns. A state needs `copies: 2`.",
		def: "all instances on one host", example: "host", kind: labelKind("label"),
		set: func(s *pando.Spec, v any) { s.Place.Spread = v.(string) },
		get: func(s pando.Spec) any { return s.Place.Spread }},
	{name: "near", doc: "first: all instances run on the host of the first one.", def: "first",
		example: "first", kind: enumKind(pando.NearFirst),
		set: func(s *pando.Spec, v any) { s.Place.Near = v.(string) },
		get: func(s pando.Spec) any { return s.Place.Near }},
	{name: "only", doc: "Label that the hosts must have, as NAME=VALUE of `pando up --label`. " +
		"host=NAME means one host.",
		def: "any host", example: "zone=a", kind: hostLabelKind,
		set: func(s *pando.Spec, v any) { s.Place.Only = v.(string) },
		get: func(s pando.Spec) any { return s.Place.Only }},
	{name: "apart", doc: "Service of the same tenant: no instance starts on a host of that service. " +
		"Instances that run already stay.", def: "none", example: "database",
		kind: labelKind("service"),
		set:  func(s *pando.Spec, v any) { s.Place.Apart = pando.ServiceName(v.(string)) },
		get:  func(s pando.Spec) any { return string(s.Place.Apart) }},
}

// noSurge replaces `surge: 0` while a file is read, because in a spec 0 is the default.
const noSurge = -1

var rolloutFields = []field{
	{name: "order",
		doc: "start-first: a new instance serves before an old one leaves. stop-first: an old instance " +
			"drains and ends before a new one starts, so the service pauses; set drain_max as well.",
		def:     "start-first; stop-first with `scale: {max: 1}`",
		example: "stop-first", kind: enumKind(string(pando.StartFirst), string(pando.StopFirst)),
		set: func(s *pando.Spec, v any) { s.Rollout.Order = pando.RolloutOrder(v.(string)) },
		get: func(s pando.Spec) any { return string(s.Rollout.Order) }},
	{name: "surge", doc: "Instances beyond the wanted number during a rollout that is start-first; " +
		"0 means `order: stop-first`.", def: "1", example: "2", kind: integerKind(0, InstancesMax),
		set: func(s *pando.Spec, v any) {
			if s.Rollout.Surge = v.(int); v == 0 {
				s.Rollout.Surge = noSurge
			}
		},
		get: func(s pando.Spec) any { return s.Rollout.Surge }},
	{name: "healthy", doc: "How long a new instance must serve before the next step.", def: "1s",
		example: "5s", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Rollout.HealthySeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Rollout.HealthySeconds) }},
	{name: "canary", doc: "Share of new connections for the new revision until it has soaked, 1% to " +
		"50%. Every old instance stays as long. Not with stop-first.", def: "none", example: "10%",
		kind: canaryKind,
		set:  func(s *pando.Spec, v any) { s.Rollout.Canary = v.(float64) },
		get:  func(s pando.Spec) any { return canaryText(s.Rollout.Canary) }},
	{name: "soak", doc: "How long the canaries serve before the rollout continues.",
		def: "30s with a canary", example: "2m", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Rollout.SoakSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Rollout.SoakSeconds) }},
	{name: "deadline", doc: "Time for the whole rollout, without pauses. Later the old revision " +
		"takes everything back.", def: "none; 10m with a canary", example: "5m", kind: durationKind,
		set: func(s *pando.Spec, v any) { s.Rollout.DeadlineSeconds = v.(float64) },
		get: func(s pando.Spec) any { return duration(s.Rollout.DeadlineSeconds) }},
	{name: "gate", doc: "Comparison of the canaries with the old instances, until the rollout ends.",
		fields: gateFields},
}
