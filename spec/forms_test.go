package spec

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pando.run/pando"
)

// written is a spec by the paths of its words. A word that is set twice has the last value.
type written map[string]string

// text returns the spec as YAML, each map in one line.
func (w written) text() string {
	var inner func(prefix string, table []field) string
	inner = func(prefix string, table []field) string {
		var parts []string
		for _, f := range table {
			if f.fields != nil {
				if s := inner(prefix+f.name+".", f.fields); s != "" {
					parts = append(parts, f.name+": {"+s+"}")
				}
			} else if v := w[prefix+f.name]; v != "" {
				parts = append(parts, f.name+": "+v)
			}
		}
		if prefix == "" {
			return strings.Join(parts, "\n") + "\n"
		}
		return strings.Join(parts, ", ")
	}
	return inner("", fields)
}

// bases are the smallest specs of each form.
var bases = map[string]written{
	"program":  {"name": "x", "command": "x", "ports": `["80:8080"]`},
	"no ports": {"name": "x", "command": "x"},
	"image":    {"name": "x", "image": "shop/web:1.2", "ports": `["80:8080"]`},
	"stateful": {"name": "x", "command": "x", "kind": "stateful", "volumes": `["data:/data"]`,
		"ports": `["80:8080"]`},
	"stateful image": {"name": "x", "image": "shop/web:1.2", "kind": "stateful",
		"volumes": `["data:/data"]`, "ports": `["80:8080"]`},
	"job":       {"name": "x", "command": "x", "kind": "job"},
	"job image": {"name": "x", "image": "shop/web:1.2", "kind": "job"},
	"vm": {"name": "x", "kind": "vm", "vm.kernel": "./k", "ports": `["80:8080"]`,
		"health.ready": "tcp"},
	"endpoints": {"name": "x", "endpoints": `["192.0.2.7:8080"]`, "ports": `["80:8080"]`},
}

// others are the words that a word needs beside it.
var others = map[string]written{
	"bundle":                  {"bundle": "./app"},
	"env_file":                {"env_file": "[./x.env]"},
	"job.zone":                {"schedule": `"1 * * * *"`},
	"job.overlap":             {"schedule": `"1 * * * *"`},
	"hooks.recover":           {"hooks.bootstrap": "b"},
	"hooks.quorum":            {"hooks.bootstrap": "b", "hooks.recover": "r", "scale.min": "3"},
	"health.startup.interval": {"health.startup.probe": "tcp 8080"},
	"health.startup.timeout":  {"health.startup.probe": "tcp 8080"},
	"health.startup.within":   {"health.startup.probe": "tcp 8080"},
	"health.interval":         {"health.live": "tcp 8080"},
	"health.fall":             {"health.live": "tcp 8080"},
	"health.timeout":          {"health.ready": "tcp 8080"},
	"publish.host":            {"publish.host": "8080:80"},
	"scale.warm":              {"scale.max": "8"},
	"working_dir":             {"working_dir": "/srv/site"},
	"folders":                 {"folders": `["/srv/fonts"]`},
	"scale.rate":              {"scale.max": "8"},
	"scale.by":                {"scale.max": "8", "scale.target": "1"},
	"scale.target":            {"scale.max": "8", "scale.by": "connections/s"},
	"scale.quiet":             {"scale.max": "8", "scale.by": "connections/s", "scale.target": "1"},
	"scale.ahead":             {"scale.max": "8", "scale.by": "connections/s", "scale.target": "1"},
	"scale.up":                {"scale.max": "8", "scale.by": "score"},
	"scale.down":              {"scale.max": "8", "scale.by": "score"},
	"scale.idle":              {"scale.min": "0"},
	"userns_mode":             {"user": "root"},
	"user":                    {"user": "1000"},
	"replicate.plain":         {"replicate.from": "snapshot"},
	"rollout.canary":          {"rollout.canary": "10%"},
	"rollout.soak":            {"rollout.canary": "10%"},
	"rollout.gate.metric":     {"rollout.canary": "10%"},
	"rollout.gate.worse_than": {"rollout.canary": "10%", "rollout.gate.metric": "error_rate"},
	"rollout.gate.above":      {"rollout.canary": "10%", "rollout.gate.metric": "error_rate"},
	"balance.weights":         {"balance.by": "score"},
	"balance.every":           {"balance.by": "score"},
}

// own are the values of words for which the example of the reference does not fit a form.
var own = map[string]written{
	"endpoints": {"balance.by": "least-flows", "health.live": "tcp 8080", "health.ready": "tcp",
		"scale.min": "1", "scale.max": "1"},
	"stateful":       {"scale.max": "1", "rollout.order": "stop-first", "kind": "stateful"},
	"stateful image": {"scale.max": "1", "rollout.order": "stop-first", "kind": "stateful"},
	"job":            {"kind": "job"},
	"job image":      {"kind": "job"},
	"vm":             {"kind": "vm", "health.startup.probe": "tcp 8080"},
	"no ports":       {"health.ready": "tcp 7000"},
}

// pairOf returns the text of the smallest spec of a form with a word, and what it reads as.
func pairOf(t *testing.T, dir, base, word string, f field) (string, pando.Spec) {
	t.Helper()
	w := maps.Clone(bases[base])
	w[word] = f.example
	maps.Copy(w, others[word])
	if v := own[base][word]; v != "" {
		w[word] = v
	}
	text := w.text()
	return text, object(t, text, dir)
}

// object reads a spec without a check.
func object(t *testing.T, text, dir string) pando.Spec {
	t.Helper()
	r := &reader{file: "x.yaml", dir: dir}
	doc := r.documents([]byte(text))
	if doc == nil {
		t.Fatalf("%v\n%s", r.problems, text)
	}
	var s pando.Spec
	r.object(doc.Docs[0].Body, "", fields, &s)
	joinHostPorts(&s)
	return s
}

// Each word of a spec has an effect in a form of a service, or is refused there with its place and
// its cure, in a file and from a program.
func TestEachWordHasAnEffectOrIsRefused(t *testing.T) {
	pairs, refused, dir := 0, 0, t.TempDir()
	for name, text := range map[string]string{"x.env": "A=1", "haproxy.cfg": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for base := range bases {
		leaves("", fields, func(word string, f field) {
			if word == "kind" && base != "endpoints" || word == "endpoints" && base != "vm" {
				return // the word makes another form
			}
			text, s := pairOf(t, dir, base, word, f)
			_, err := Parse("x.yaml", []byte(text), dir)
			path, why := useless(word, formOf(s))
			pairs++
			if path == "" {
				if want := otherwise[word+", "+base]; (err == nil) != (want == "") ||
					err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s: %v, want %q\n%s", word, base, err, want, text)
				}
				return
			}
			refused++
			want := path + ": " + why
			if word == "env_file" {
				want = "environment: " + why
			}
			if err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "x.yaml:") || strings.Contains(err.Error(), "x.yaml:1:1:") {
				t.Errorf("%s, %s: %v, want %q with its place\n%s", word, base, err, want, text)
			}
			if word == "env_file" || word == "working_dir" {
				return // a program gives the variables, and a loader the folder
			}
			if word == "publish.host" {
				return // a program gives the ports
			}
			if err := Check(s.WithDefaults()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a program: %s, %s: %v, want %q", word, base, err, want)
			}
		})
	}
	if pairs < 700 || refused < 200 {
		t.Errorf("%d pairs, %d refused", pairs, refused)
	}
}

// otherwise are pairs of which another rule refuses the example.
var otherwise = map[string]string{
	"scale.by, no ports":     "counts traffic of a published port",
	"scale.target, no ports": "counts traffic of a published port",
	"scale.quiet, no ports":  "counts traffic of a published port",
	"scale.ahead, no ports":  "counts traffic of a published port",
}

// A new word has a row of the table, and a new field of pando.Spec has a word.
func TestEachWordHasARow(t *testing.T) {
	rows := map[string]form{}
	for _, e := range effects {
		if rows[e.word]&e.not != 0 {
			t.Errorf("%s has two rows for one form", e.word)
		}
		rows[e.word] |= e.not
	}
	known, maps := map[string]bool{}, map[string]bool{}
	leaves("", fields, func(word string, f field) {
		known[word] = true
		for at := strings.LastIndex(word, "."); at > 0; at = strings.LastIndex(word[:at], ".") {
			maps[word[:at]] = true
		}
		if _, ok := rows[word]; !ok {
			t.Errorf("%s has no row: in which forms of a service has it an effect?", word)
		}
	})
	for word := range rows {
		if !known[word] && !maps[word] {
			t.Errorf("%s has a row and is no word", word)
		}
	}
}

// Each field of pando.Spec is set by a word.
func TestEachFieldOfASpecHasAWord(t *testing.T) {
	set := map[string]bool{}
	leaves("", fields, func(word string, f field) {
		for _, value := range append(further[word], f.example) {
			s := object(t, written{"ports": "[80]", word: value}.text(), "/srv")
			fieldsOf("", reflect.ValueOf(s), func(path string, v reflect.Value) {
				set[path] = set[path] || !v.IsZero()
			})
		}
	})
	fieldsOf("", reflect.ValueOf(pando.Spec{}), func(path string, _ reflect.Value) {
		if !set[path] && !byDeploy[path] {
			t.Errorf("no word sets %s of pando.Spec: add it to fields.go, and a row to forms.go", path)
		}
	})
}

// further are second values of words.
var further = map[string][]string{
	"scale.min":            {"0"},
	"scale.by":             {"{metric: connections/s, target: 3}"},
	"health.ready":         {"exec ./check", "http GET :7000/ok", "https GET / -H A:b"},
	"health.live":          {"tcp 7000", "exec x", "http GET /", "https GET / -H A:b"},
	"health.startup.probe": {"http GET :7000/ok", "https GET / -H A:b"},
	"state":                {"{hits: counter, copies: 2}"},
	"volumes":              {`["data:/data:ro", "all:/all:shared", "media:/m:of=db"]`},
	"tmpfs":                {`["/x:size=1m,mode=1777,noexec"]`},
	"configs":              {`{a: {content: x, target: /a, mode: "0600", check: x, on_change: HUP, template: true}}`},
	"balance.weights":      {"{cpu: 1, memory: 1, bandwidth: 1, pressure: 1, stall: 1, loss: 1, rtt: 1, queue: 1}"},
}

// byDeploy are fields that a deploy fills in.
var byDeploy = map[string]bool{"Image.Digest": true, "Image.Host": true, "Image.Inside": true,
	"Image.Prove": true, "Image.For": true, // of an agent, for one pull
	"Image.Gave": true, "Bundle.Digest": true, "Bundle.Host": true}

// fieldsOf visits the fields of a value that have none of their own. An empty list has those of one
// element.
func fieldsOf(path string, v reflect.Value, visit func(string, reflect.Value)) {
	switch {
	case v.Type() == reflect.TypeFor[netip.Addr]():
		visit(path, v)
	case v.Kind() == reflect.Struct:
		for n := range v.NumField() {
			fieldsOf(strings.TrimPrefix(path+"."+v.Type().Field(n).Name, "."), v.Field(n), visit)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		fieldsOf(path+"[]", reflect.Zero(v.Type().Elem()), visit)
		for n := range v.Len() {
			fieldsOf(path+"[]", v.Index(n), visit)
		}
	default:
		visit(path, v)
	}
}

// One run of any service is a good job, although a job refuses many of its words.
func TestOneRunOfAServiceIsAGoodSpec(t *testing.T) {
	s := wholeSpec()
	s.WorkingDir, s.Place.Only = "/srv/site", ""
	once, err := s.WithDefaults().Once("one-run")
	if err == nil {
		err = Check(once.WithDefaults())
	}
	if err != nil {
		t.Error(err)
	}
}
