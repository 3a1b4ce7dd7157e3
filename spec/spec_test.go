package spec

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"pando.run/pando"
)

var update = flag.Bool("update", false, "write the generated files")

const whole = `
name: website
tenant: shop
command: ./website -v "two words"
environment: {LOG: debug, N: 3}
working_dir: site
user: 1000
stop_signal: QUIT
stop_grace_period: 1m30s
restart: on-failure
ports: ["80:8080", "53:53/udp", 9000, {target: 7000, published: 70}]
health: {ready: "http GET /ok", live: tcp 7000, interval: 2s, timeout: 500ms, fall: 5,
  startup: {probe: exec ./up, interval: 3s, timeout: 4s, within: 2m}, ready_within: 5s}
scale: {min: 2, max: 8, warm: 1, rate: 30/m, by: {metric: connections/s, target: 100}, quiet: 1m}
state: {hits: counter, access.log: append-log, "sessions/*": set}
resources: {cpus: 0.5, memory: 1.5m, pids: 100}
rollout: {order: start-first, surge: 2, healthy: 5s, canary: 12.5%, soak: 20s, deadline: 3m,
  gate: {metric: error_rate, worse_than: 2, above: 0.01}}
place: {near: first, only: zone=a, apart: db}
folders: [/srv/fonts, "./data:rw", "/opt/x:ro"]
secrets: {password: /etc/shop/password, key.pem: key.pem, db: {on_change: HUP}, api: {}}
balance: {by: score, weights: {cpu: 2, memory: 0.5}, every: 200ms}
reach: [internet, host]
security_opt: [seccomp:unconfined]
drain_max: 10m
labels: [team=web]
`

func wholeSpec() pando.Spec {
	return pando.Spec{
		Name: "website", Tenant: "shop", Command: []string{"./website", "-v", "two words"},
		Environment: map[string]string{"LOG": "debug", "N": "3"}, WorkingDir: "/d/site", User: "1000",
		StopSignal: "SIGQUIT", StopSeconds: 90, Restart: pando.RestartOnFailure,
		Ports: []pando.Port{{Published: 80, Target: 8080, Protocol: "tcp"},
			{Published: 53, Target: 53, Protocol: "udp"},
			{Published: 9000, Target: 9000, Protocol: "tcp"},
			{Published: 70, Target: 7000, Protocol: "tcp"}},
		Health: pando.Health{Startup: pando.Startup{
			Probe:           pando.Probe{Kind: "exec", Command: []string{"./up"}},
			IntervalSeconds: 3, TimeoutSeconds: 4, SecondsMax: 120},
			Ready:           pando.Probe{Kind: "http", Path: "/ok"},
			Live:            pando.Probe{Kind: "tcp", Port: 7000},
			IntervalSeconds: 2, TimeoutSeconds: .5, Fall: 5, ReadySecondsMax: 5},
		Scale: pando.Scale{Min: 2, Max: 8, Warm: 1, RatePerSecond: .5, By: pando.ByConnections,
			Target: 100, QuietSeconds: 60},
		State: map[string]pando.StateType{
			"hits": "counter", "access.log": "append-log", "sessions/*": "set",
		},
		Resources: pando.Resources{CPUs: .5, MemoryBytes: 1536 << 10, PIDs: 100},
		Rollout: pando.Rollout{Order: pando.StartFirst, Surge: 2, HealthySeconds: 5, Canary: 0.125,
			SoakSeconds: 20, DeadlineSeconds: 180,
			Gate: pando.Gate{Metric: "error_rate", WorseThan: 2, Above: 0.01}},
		Balance: pando.Balance{By: pando.ByScore, Weights: pando.Weights{CPU: 2, Memory: 0.5},
			EverySeconds: 0.2},
		Place: pando.Place{Near: pando.NearFirst, Only: "zone=a", Apart: "db"},
		Folders: []pando.Folder{
			{Path: "/srv/fonts"}, {Path: "/d/data", Write: true}, {Path: "/opt/x"},
		},
		Secrets:         map[string]string{"password": "/etc/shop/password", "key.pem": "/d/key.pem"},
		StoredSecrets:   []pando.StoredSecret{{Name: "api"}, {Name: "db", OnChange: "SIGHUP"}},
		Reach:           []pando.Reach{pando.ReachInternet, pando.ReachHost},
		SecurityOpt:     []string{pando.SeccompUnconfined},
		DrainSecondsMax: 600, Labels: map[string]string{"team": "web"},
	}
}

func TestParseReadsEveryField(t *testing.T) {
	got, err := Parse("a.yaml", []byte(whole), "/d")
	if err != nil {
		t.Fatal(err)
	}
	if want := wholeSpec(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if err := Check(got[0]); err != nil {
		t.Error(err)
	}
}

func TestOneWriterIsSaidByMaxOrderOrSurge(t *testing.T) {
	for text, want := range map[string]struct {
		order  pando.RolloutOrder
		single bool
	}{
		"":                             {pando.StartFirst, false},
		"scale: {min: 1}":              {pando.StartFirst, false}, // its max is 1 only by default
		"scale: {max: 1}":              {pando.StopFirst, true},
		"rollout: {surge: 0}":          {pando.StopFirst, true},
		"rollout: {order: stop-first}": {pando.StopFirst, true},
		"scale: {max: 1}\nrollout: {order: start-first}": {pando.StartFirst, false},
		"scale: {max: 3}\nrollout: {surge: 0}":           {pando.StopFirst, false},
	} {
		got, err := Parse("a.yaml", []byte(minimal+text), "/d")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		s := got[0].WithDefaults()
		if s.Rollout.Order != want.order || s.Single() != want.single || s.Rollout.Surge != 1 {
			t.Errorf("%q: order %s, surge %d, single %t; want %+v", text, s.Rollout.Order, s.Rollout.Surge,
				s.Single(), want)
		}
		if again := s.WithDefaults(); !reflect.DeepEqual(again, s) {
			t.Errorf("%q: defaults of defaults are %+v", text, again)
		}
		if read, err := Parse("b.yaml", Format(s), "/d"); err != nil ||
			!reflect.DeepEqual(read[0].WithDefaults(), s) {
			t.Errorf("%q: printed and read again it is %+v, %v", text, read, err)
		}
	}
}

func TestSeveralDocumentsAreSeveralServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "two.yaml")
	if err := os.WriteFile(file, []byte("name: a\ncommand: x\n---\nname: b\ncommand: y\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(t.Context(), file)
	if err != nil || len(got) != 2 || got[1].Name != "b" || got[1].WorkingDir != filepath.Dir(file) {
		t.Fatalf("%+v, %v", got, err)
	}
}

// A name may belong to any kind of file. No file blocks past an interrupt or is read without end,
// and no refusal is reported as a defect.
func TestOddFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Symlink("loop", at("loop")), syscall.Mkfifo(at("pipe"), 0o600),
		os.Mkdir(at("folder"), 0o700),
		os.WriteFile(at("file"), []byte("\ufeffname: a\ncommand: x\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		at("loop"):    "levels of symbolic links",
		at("file/in"): "not a directory",
		at("folder"):  "is a folder: name the file in it",
		"/dev/zero":   "larger than 1 MiB",
		"/dev/null":   "there is no service in this file",
	} {
		_, err := Load(t.Context(), path)
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
	}
	if specs, err := Load(t.Context(), at("file")); err != nil || specs[0].Name != "a" {
		t.Errorf("behind a byte order mark: %+v, %v", specs, err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := Load(ctx, at("pipe")); !errors.Is(err, context.Canceled) {
		t.Errorf("a pipe without a writer: %v", err)
	}
	w, err := os.OpenFile(at("pipe"), os.O_RDWR, 0) // releases a reader that still waits for a writer
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
}

// minimal precedes the lines of a case, so that they begin in line 3.
const minimal = "name: w\ncommand: x\n"

var refused = []struct{ yaml, want string }{
	{"port: [80]", "3:1: port: unknown key: did you mean `ports`?"},
	{"zzzzzz: 1", "3:1: zzzzzz: unknown key: known are name, tenant"},
	{"scale:\n  maximum: 3", "4:3: scale.maximum: unknown key"},
	{"scale: {mim: 3}", "3:9: scale.mim: unknown key: did you mean `min`?"},
	{"scale: 3", "3:8: scale: want a map with min, max"},
	{"scale: {min: 3, max: 2}", "3:17: scale.max: max 2 is less than min 3"},
	{"scale: {max: 1, warm: 1}", "3:17: scale.warm: a reserve runs beside the instance"},
	{"place: {near: last}", "3:15: place.near: want first"},
	{"place: {only: zone}", "place.only: want a label such as zone=a"},
	{"place: {spread: host, near: first}", "place.near: contradicts spread"},
	{"place: {spread: zone}\nstate: {hits: counter}", "place.spread: the service has a state"},
	{"rollout: {order: stop-last}", "3:18: rollout.order: want one of start-first, stop-first"},
	{"health: {ready: grpc}", "names no port"},
	{"health: {live: udp}", "names no port"},
	{"health: {live: udp 0}", "port 0: want 1 to 65535"},
	{"health: {live: ping 80}", "3:16: health.live: want a probe"},
	{"health: {live: ping}", "3:10: health.live: ping proves nothing of a program"},
	{"health: {ready: grpc 7000 db}", "3:17: health.ready: want a probe"},
	{"rollout: {canary: 60%}", "3:19: rollout.canary: 60%: want a share from 1% to 50%"},
	{"rollout: {canary: 10%}", "publishes no port"},
	{"ports: [80]\nrollout: {canary: 10%, order: stop-first}", "the order is stop-first"},
	{"ports: [80]\nrollout: {canary: 10%, surge: 0}", "the order is stop-first"},
	{"ports: [80]\nrollout: {canary: 10%, soak: 1m, deadline: 30s}", "is over before the soak is"},
	{"ports: [80]\nrollout: {canary: 10%, gate: {above: 1}}", "names no number"},
	{"ports: [80]\nrollout: {gate: {metric: errors}}", "needs a canary"},
	{"rollout: {soak: 5s}", "needs a canary"},
	{"rollout: {gate: {metric: score}}", "is no number of the application"},
	{"rollout: {surge: 0, order: start-first}", "rollout.surge: 0 means order: stop-first"},
	{"ports: [80]\nscale: {min: 0, by: {metric: connections/s, target: 5}}",
		"4:9: scale.min: 0 beside by"},
	{"scale: {max: 0}", "3:14: scale.max: 0: want a whole number from 1"},
	{"scale: {min: two}", `3:14: scale.min: want a whole number from 0 on; this is "two"`},
	{"scale: {warm: -1}", "3:15: scale.warm: want a whole number from 0 on"},
	{"scale: {rate: 10}", "3:15: scale.rate: want a rate such as 10/s"},
	{"scale: {by: Queue, target: 1}", "3:13: scale.by: want one of connections/s, packets/s, score"},
	{"scale: {by: queue_depth}", "3:9: scale.by: needs a target"},
	{"scale: {by: score, target: 1}", "3:20: scale.target: has no effect with by: score"},
	{"scale: {by: score, up: 0.1, down: 0.2}", "scale.down: 0.2 is not below up 0.1"},
	{"scale: {by: score, up: 0.1}", "scale.down: 0.1 is not below up 0.1"},
	{"ports: [80]\nscale: {min: 0}\nbalance: {at: connect}",
		"4:9: scale.min: 0 ends a service without packets"},
	{"balance: {at: dial}", "3:15: balance.at: "},
	{"scale: {up: 1}", "3:9: scale.up: has no effect without by: score"},
	{"balance: {by: best}", "3:15: balance.by: want one of hash, round-robin, haven, score"},
	{"balance: {weights: {}}", "balance.weights: every weight is 0"},
	{"balance: {weights: {disk: 1}}", "balance.weights.disk"},
	{"balance: {weights: {cpu: 2000}}", "balance: balance.weights: 2000: want 0 to 1000"},
	{"balance: {every: 10ms}", "balance: balance.every: 10ms: want 50ms to 5s"},
	{"ports: [80]\nscale: {by: packets/s}", "4:9: scale.by: needs a target"},
	{"scale: {target: 5}", "3:9: scale.target: has no effect without by"},
	{"scale: {by: {metric: packets/s, target: 5}}",
		"3:9: scale.by: counts traffic of a published port"},
	{"ports: 80", `3:8: ports: want a list of ports such as ["80:8080"]; this is "80"`},
	{"ports:\n- 80:8080\n- 80:9090", "5:3: ports[1]: 80/tcp is published twice"},
	{"ports: [0]", "3:9: ports[0]: port 0: want 1 to 65535"},
	{"ports: [\"80:65536\"]", "3:9: ports[0]: port 65536: want 1 to 65535"},
	{"ports: [80/sctp]", "3:9: ports[0]: want a port such as"},
	{"ports: [80-8080]",
		"3:9: ports[0]: want a port such as 8080, 80:8080 or 53:53/udp; this is \"80-8080\""},
	{"ports: [1:2:3]", "3:9: ports[0]: want a port such as"},
	{"ports: [{published: 80}]", "ports[0].target: is missing"},
	{"stop_signal: SIGFOO", "3:14: stop_signal: want a signal such as SIGTERM"},
	{"stop_grace_period: 10", "3:20: stop_grace_period: want a duration such as"},
	{"stop_grace_period: 0s", "3:20: stop_grace_period: \"0s\": must be longer"},
	{"restart: sometimes", "3:10: restart: want one of always, on-failure, no"},
	{"state: {hits: count}", "3:15: state.hits: want one of counter, set"},
	{"state: {../x: set}", "3:9: state.../x: want a relative path"},
	{"health: {ready: \"http POST /\"}", "3:17: health.ready: want a probe"},
	{"health: {ready: tcp}", "3:10: health.ready: names no port"},
	{"health: {live: tcp 99999}", "3:16: health.live: port 99999: want 1 to 65535"},
	{"environment: [A]", "3:15: environment[0]: want KEY=value"},
	{"environment: [A=1, A=2]", "3:20: environment[1]: A is here twice"},
	{"environment: {A: [1]}", "environment.A: want a text or a number; this is a list"},
	{"user: Root User", "3:7: user: want a user such as"},
	{"user: \"1000:\"", "3:7: user: want a user such as"},
	{"user: 4294967295", "is more than the largest id, 4294967294"},
	{"user: 99999999999", "3:7: user: want a user such as"},
	{"scale: {max: 4097}", "3:14: scale.max: 4097: want a whole number from 1 to 4096"},
	{"stop_grace_period: 10000h", "is longer than a year"},
	{"resources: {memory: lots}", "3:21: resources.memory: want an amount of memory such as 64M"},
	{"resources: {cpus: 0}", "3:19: resources.cpus: want a number above 0"},
	{"labels: {a: 1}\nlabels: {b: 2}", "4:1: labels: this key is here twice"},
	{"labels: &x {a: b}", "anchors, aliases, tags"},
	{"labels: *x", "3:9: "},
	{"labels:\n\ta: b", "4:1: a tab indents this line: use spaces"},
	{"user: \"a", "3:7: "},
	{"build: .", "3:1: build: unknown key: build it before the deploy"},
	{"healthcheck: {test: x}", "3:1: healthcheck: unknown key: health.ready and health.live"},
	{"devices: [x]", "unknown key: instances have no device of the host"},
	{"services: {a: {}}", "services: unknown key: this is a Compose file"},
	{"resources: {memory: 64Mi}", `this is "64Mi"; write 64M`},
	{"resources: {cpus: 500m}", `this is "500m"; write 0.5`},
	{"resources: {cpus: 1500m}", `write 1.5`},
	{"restart: unless-stopped", `this is "unless-stopped"; write always`},
	{"scale: {by: cpu, target: 1}", "cpu is part of the score: use by: score"},
	{"scale: {by: CPU, target: 1}", "cpu and memory are part of the score: write score"},
	{"---\nname: w\ncommand: y", "4:1: name: service w is in this file twice"},
}

func TestErrorsNameTheirPlace(t *testing.T) {
	for _, c := range refused {
		specs, err := Parse("a.yaml", []byte(minimal+c.yaml+"\n"), "/d")
		if specs != nil || !errors.Is(err, pando.ErrInvalid) ||
			!strings.HasPrefix(err.Error(), "a.yaml:") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.yaml, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                           "a.yaml:1:1: there is no service in this file",
		"command: x":                 "a.yaml:1:1: name: is missing",
		"name: w\ncommand: ''":       "a.yaml:2:10: command: is empty",
		"name: w\ncommand: \"x 'y\"": "a.yaml:2:10: command: a quote ' that does not end",
		"name: W\ncommand: x":        "a.yaml:1:7: name: want a service name",
		"name: w\ncommand: x\x00":    "a.yaml:2:11: a NUL byte",
		"name: w\ncommand: t\xe4":    "a.yaml:2:11: the byte 0xe4 is not UTF-8",
		"\xff\xfen\x00a\x00":         "a.yaml:1:1: the file is in UTF-16",
		"name: w\ncommand: x\xef":    "a.yaml:2:11: the byte 0xef is not UTF-8",
		"- name: w":                  "want a map with name",
		"labels: [a":                 "a list that begins with [ has no ]",
		"labels: {a: b":              "a map that begins with { has no }",
		"name: \"w":                  "a quote \" does not end",
		"name: a: b":                 "put a text with a colon in quotes",
		// A check of the file refuses every spec that a deploy refuses.
		"name: w\ncommand: x\nenvironment: {A: \"b\\0\"}": "3:1: environment.A: has a NUL byte",
		strings.Repeat("[", 1<<20):                        "nested deeper than 100 levels",
		strings.Repeat("- ", 1<<19):                       "nested deeper than 100 levels",
		strings.Repeat("#", (1<<20)+100):                  "larger than 1 MiB",
	} {
		_, err := Parse("a.yaml", []byte(text), "/d")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q:\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestAllErrorsOfAFileAreReportedAtOnce(t *testing.T) {
	_, err := Parse("a.yaml", []byte("nam: w\ncommand: x\nports: [0]\nrestart: maybe\n"), "/d")
	var p Problems
	if !errors.As(err, &p) || len(p) != 4 {
		t.Fatalf("got %v; want four problems", err)
	}
}

func TestFormatRoundTrip(t *testing.T) {
	word := rapid.String().Filter(func(s string) bool {
		return !strings.Contains(s, "\x00") && strings.ToValidUTF8(s, "") == s
	})
	rapid.Check(t, func(t *rapid.T) {
		s := wholeSpec()
		s.Command = append([]string{"./x"}, rapid.SliceOfN(word, 0, 3).Draw(t, "command")...)
		s.Environment = map[string]string{"A": word.Draw(t, "value"), "n": "no", "true": "1.50"}
		s.StopSeconds = float64(rapid.IntRange(0, 1e7).Draw(t, "ms")) / 1000
		s.Scale.Max = rapid.IntRange(3, 1000).Draw(t, "max")
		s.Resources.MemoryBytes = rapid.Int64Range(0, 1<<50).Draw(t, "memory")
		s.Health.Live = pando.Probe{Kind: pando.ProbeExec,
			Command: []string{"sh", "-c", rapid.StringMatching(`[a-z' "\\$]*`).Draw(t, "exec")}}
		text := Format(s)
		back, err := Parse("x", text, "/elsewhere")
		if err != nil || len(back) != 1 || !reflect.DeepEqual(back[0], s) {
			t.Fatalf("%v\n%s\n got %+v\nwant %+v", err, text, back, s)
		}
	})
}

func TestGeneratedFilesAreFresh(t *testing.T) {
	for file, want := range map[string][]byte{
		"schema.json": makeSchema(), "../docs/reference/spec.md": makeReference(),
	} {
		if *update {
			err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, want, 0o644))
			if err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale (%v): run go test ./spec -update", file, err)
		}
	}
}

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(makeSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("spec.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("spec.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onlyParse are the rules that a schema cannot express, and errors of the YAML itself.
var onlyParse = []string{"less than min", "needs a target", "has no effect without by",
	"counts traffic", "published twice", "names no port", "here twice",
	"anchors", "tab indents", "3:7: ", "3:9: ", "in this file twice", "65536", "99999",
	"longer than nothing", "../x", "must be longer", "longer than a year", "largest id",
	"a reserve runs", "0 means order", "0 beside by", "ends a service without", "contradicts spread",
	"has a state",
	"is part of the score", "with by: score", "is not below up", "want 0 to 1000", "want 50ms to 5s",
	"want a share from", "publishes no port", "the order is stop-first", "before the soak is",
	"names no number", "needs a canary", "is no number of the", "want 1 to 65535", "proves nothing"}

func TestSchemaAndParserAgree(t *testing.T) {
	s := compiledSchema(t)
	accepts := func(text string) bool { return s.Validate(document(t, []byte(text))) == nil }
	good := []string{
		whole, minimal, minimal + "environment: [A=b]", minimal + "ports: [80, \"81\", 82:83, 84/udp]",
	}
	for _, text := range good {
		if _, err := Parse("x", []byte(text), "/d"); err != nil {
			t.Errorf("the parser refuses %q: %v", text, err)
		}
		if !accepts(text) {
			t.Errorf("the schema refuses %q", text)
		}
	}
	checked := 0
next:
	for _, c := range refused {
		for _, rule := range onlyParse {
			if strings.Contains(c.want, rule) {
				continue next
			}
		}
		checked++
		if accepts(minimal + c.yaml) {
			t.Errorf("the schema accepts %q, the parser returns %s", c.yaml, c.want)
		}
	}
	if checked < 15 {
		t.Errorf("only %d cases were compared", checked)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	for _, more := range []string{"state: {a//b: set}", "state: {./a: set}", "state: {a/: set}",
		"state: {'..': set}", "state: {a/..: set}", "state: {'a/*': set}"} {
		f.Add([]byte(minimal + more))
	}
	for _, c := range refused {
		f.Add([]byte(minimal + c.yaml))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := Parse("f", data, "/d")
		if (err == nil) == (len(specs) == 0) {
			t.Fatalf("%d specs and %v", len(specs), err)
		}
		for _, s := range specs {
			if err := Check(s); err != nil {
				t.Fatalf("the file is accepted, the spec is not: %v", err)
			}
			back, err := Parse("g", Format(s), "/elsewhere")
			if err != nil || len(back) != 1 {
				t.Fatalf("%v\n%s", err, Format(s))
			}
		}
	})
}

// `min: 0` is no absence of a word: it survives defaults, its own YAML and a store.
func TestAMinimumOfZeroCanBeSaid(t *testing.T) {
	quiet := pando.Spec{}.WithDefaults().Scale.QuietSeconds
	for text, want := range map[string]pando.Scale{
		"":                        {Min: 1, Max: 1},
		"scale: {min: 0}":         {Max: 1, Zero: true},
		"scale: {min: 0, max: 4}": {Max: 4, Zero: true},
		"scale: {max: 4}":         {Min: 1, Max: 4},
		"ports: [80]\nscale: {min: 0, idle: 60s}": {Max: 1, Zero: true, IdleSeconds: 60},
	} {
		specs, err := Parse("a.yaml", []byte(minimal+text), "/d")
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		want.QuietSeconds = quiet
		s := specs[0].WithDefaults().WithDefaults()
		if s.Scale != want {
			t.Errorf("%q: %+v, want %+v", text, s.Scale, want)
		}
		again, err := Parse("b.yaml", Format(s), "/d")
		if err != nil || again[0].WithDefaults().Scale != want {
			t.Errorf("%q: %+v after %s (%v)", text, again, Format(s), err)
		}
		if err := Check(s); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	by := pando.Spec{Name: "web", Command: []string{"/bin/true"},
		Ports: []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}},
		Scale: pando.Scale{Zero: true, By: pando.ByConnections, Target: 5}}.WithDefaults()
	if err := Check(by); err == nil {
		t.Error("a service of no instance may scale by traffic")
	}
	by.Scale.IdleSeconds = 60
	if err := Check(by); err != nil {
		t.Errorf("traffic starts the first instance: %v", err)
	}
	by.Scale.Zero, by.Scale.Min = false, 1
	if err := Check(by); err == nil {
		t.Error("idle may stand beside min: 1")
	}
}

// A drain has an end unless the spec says none, in either form of the spec.
func TestADrainHasAnEndUnlessNone(t *testing.T) {
	for text, want := range map[string]float64{
		"": 600, "drain_max: 30s\n": 30, "drain_max: none\n": pando.DrainForever,
	} {
		parsed, err := Parse("x.yaml", []byte("name: web\ncommand: [./web]\n"+text), "/")
		if err != nil || len(parsed) != 1 {
			t.Fatal(parsed, err)
		}
		if got := parsed[0].WithDefaults().DrainSecondsMax; got != want {
			t.Errorf("%q: %g, want %g", text, got, want)
		}
		back, err := Parse("x.yaml", Format(parsed[0].WithDefaults()), "/")
		if err != nil || back[0].WithDefaults().DrainSecondsMax != want || Check(back[0]) != nil {
			t.Errorf("%q: written and read again: %v, %v", text, back, err)
		}
	}
}
