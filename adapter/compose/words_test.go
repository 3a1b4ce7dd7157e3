package compose

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando/spec"
)

// pathsOf returns every path of a type of compose-go, by its names in YAML.
func pathsOf(t reflect.Type, at []string, seen []reflect.Type) (out [][]string) {
	for {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			t = t.Elem()
			continue
		case reflect.Map:
			at, t = append(slices.Clone(at), "*"), t.Elem()
			continue
		}
		break
	}
	if t.Kind() != reflect.Struct || slices.Contains(seen, t) {
		return [][]string{at}
	}
	for n := range t.NumField() {
		f := t.Field(n)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case f.PkgPath != "" || name == "-" || strings.HasPrefix(name, "#") || f.Name == "Extensions":
		case f.Anonymous || strings.Contains(options, "inline"):
			out = append(out, pathsOf(f.Type, at, append(seen, t))...)
		case name != "":
			out = append(out, pathsOf(f.Type, append(slices.Clone(at), name), append(seen, t))...)
		}
	}
	if len(out) == 0 {
		return [][]string{at}
	}
	return out
}

// Every word that the library reads has a line in the table, and a reason if the line needs one.
func TestEveryWordOfComposeIsInTheTable(t *testing.T) {
	all := pathsOf(reflect.TypeFor[types.Project](), nil, nil)
	if len(all) < 400 {
		t.Fatalf("the library has only %d words", len(all))
	}
	internal := []string{"services.*.name", "services.*.networks.*.name"} // the key, not a word
	for _, path := range all {
		if slices.Contains(internal, strings.Join(path, ".")) {
			continue
		}
		w, ok := wordOf(path)
		if !ok {
			t.Errorf("%s has no line in the table", strings.Join(path, "."))
			continue
		}
		// A line of "services" alone would cover any new word of a service.
		if path[0] == "services" && strings.Count(w.path, ".") < 2 {
			t.Errorf("%s is covered by %s only", strings.Join(path, "."), w.path)
		}
	}
	for _, w := range words {
		if w.text == "" && w.treatment != honoured {
			t.Errorf("%s has no reason", w.path)
		}
	}
}

// No line of the table is for a word that the library does not have, but for words of old files.
func TestTheTableHasNoOtherWords(t *testing.T) {
	all := pathsOf(reflect.TypeFor[types.Project](), nil, nil)
	for _, w := range words {
		old := []string{"version", "include", "services.*.log_driver", "services.*.log_opt",
			"services.*.net", "services.*.dockerfile"}
		pattern := strings.Split(w.path, ".")
		if slices.Contains(old, w.path) || strings.HasSuffix(w.path, "x-*") {
			continue
		}
		known := slices.ContainsFunc(all, func(path []string) bool {
			return len(path) >= len(pattern) && covers(pattern, path[:len(pattern)])
		})
		if !known {
			t.Errorf("the library has no word %s", w.path)
		}
	}
}

// samples are one value of each word of a service, with the words that it needs beside it.
var samples = map[string]string{
	"annotations": "{a: b}", "attach": "false", "blkio_config": "{weight: 300}",
	"cap_add": "[SYS_NICE]", "cap_drop": "[ALL]", "cgroup": "host", "cgroup_parent": "x",
	"command": "[./x]", "container_name": "other", "cpu_count": "2", "cpu_percent": "50",
	"cpu_quota": "50000", "cpu_rt_period": "1000", "cpu_rt_runtime": "1000", "cpu_shares": "100",
	"cpus": "0.5", "cpuset": "'0,1'", "credential_spec": "{file: x}", "depends_on": "[b]",
	"deploy":  "{replicas: 3}",
	"develop": "{watch: [{path: ./x, action: rebuild}]}", "device_cgroup_rules": "['c 1:3 mr']",
	"devices": "[/dev/fuse]", "dns": "8.8.8.8", "dns_opt": "[ndots:2]", "dns_search": "example.com",
	"domainname": "example.com", "entrypoint": "[/x]", "env_file": "x.env",
	"environment": "{A: b}", "expose": "[8080]", "external_links": "[x]",
	"extra_hosts": "[x:192.0.2.1]", "gpus": "all", "group_add": "[audio]",
	"healthcheck": "{test: [CMD, /ok]}", "hostname": "x", "image": "other:1", "init": "true",
	"ipc": "host", "isolation": "hyperv", "label_file": "x.env", "labels": "{a: b}",
	"links": "[b:bb]", "logging": "{driver: syslog}", "mac_address": "92:d0:c6:0a:29:33",
	"mem_limit": "64m", "mem_reservation": "32m", "mem_swappiness": "10", "memswap_limit": "128m",
	"network_mode": "none", "networks": "{default: {aliases: [aa]}}",
	"oom_kill_disable": "true", "oom_score_adj": "10", "pid": "host", "pids_limit": "10",
	"platform": "linux/arm64", "ports": "['8080:80']", "post_start": "[{command: x}]",
	"pre_start": "[{image: y, command: x}]", "pre_stop": "[{command: x}]", "privileged": "true",
	"profiles": "[p]", "provider": "{type: x}", "pull_policy": "always", "read_only": "true",
	"restart": "always", "runtime": "kata", "scale": "2", "secrets": "[s]", "configs": "[c]",
	"security_opt": "[seccomp=unconfined]", "shm_size": "128m", "stdin_open": "true",
	"stop_grace_period": "20s", "stop_signal": "SIGINT", "storage_opt": "{size: 1G}",
	"sysctls": "{net.core.somaxconn: 1024}", "tmpfs": "/x", "tty": "true",
	"ulimits": "{nofile: 1024}", "umask": "63", "use_api_socket": "true", "user": "'1000'",
	"userns_mode": "host", "uts": "host", "volumes": "[data:/x]", "volumes_from": "[b]",
	"working_dir": "/x", "cpu_period": "50000, cpu_quota: 25000", "pull_refresh_after": "1h",
	"build": ".", "extends": "b",
}

// Each word of a service does what its line says: an honoured word changes the spec, a named one is
// a warning at its place, a refused one is an error there, and an unseen one changes nothing.
func TestEachWordDoesWhatItsLineSays(t *testing.T) {
	const rest = "  b: {image: b, labels: {from: b}}\nvolumes: {data: {}}\nsecrets: {s: {file: /s}}\n" +
		"configs: {c: {content: x}}\n"
	convert := func(words string) (string, spec.Problems, error) {
		c, err := parseIn(t, "services:\n  a: {"+words+"}\n"+rest, map[string]string{"x.env": "A=b\n"})
		text := ""
		for _, s := range c.Specs {
			text += string(spec.Format(s)) + "---\n"
		}
		return text, c.Warnings, err
	}
	plain, _, err := convert("image: a")
	if err != nil {
		t.Fatal(err)
	}
	idleHere := []string{"cap_drop", "attach"} // what they ask for is so already
	for _, w := range words {
		name, ok := strings.CutPrefix(w.path, "services.*.")
		if !ok || strings.Contains(name, ".") || strings.HasSuffix(name, "*") {
			continue
		}
		value, ok := samples[name]
		if !ok {
			if !slices.Contains([]string{"log_driver", "log_opt", "net", "dockerfile",
				"volume_driver", "models"}, name) { // the library refuses them
				t.Errorf("%s has no sample", name)
			}
			continue
		}
		words := name + ": " + value
		if name != "image" && name != "build" {
			words = "image: a, " + words
		}
		got, warnings, err := convert(words)
		at := "services.a." + name
		warned := slices.ContainsFunc(warnings, func(p spec.Problem) bool {
			return strings.HasPrefix(p.Path, at)
		})
		treatment := w.treatment
		if name == "logging" {
			treatment = named // its driver
		}
		switch {
		case slices.Contains(idleHere, name):
		case treatment == refused && (err == nil || !strings.Contains(err.Error(), at)):
			t.Errorf("%s is refused, and the error is %v", words, err)
		case treatment != refused && name != "profiles" && err != nil:
			t.Errorf("%s: %v", words, err)
		case treatment == named && (!warned || got != plain):
			t.Errorf("%s is named, and the warnings are %v", words, warnings)
		case treatment == honoured && got == plain && !warned:
			t.Errorf("%s is honoured, and changes nothing", words)
		case treatment == unseen && (got != plain || warned):
			t.Errorf("%s is unseen, and changes something: %v", words, warnings)
		}
	}
}

// The reference has the table.
func TestTheReferenceOfComposeIsFresh(t *testing.T) {
	const path = "../../docs/reference/compose.md"
	want := []byte(reference())
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stale (%v): run go test ./adapter/compose -update", path, err)
	}
}

// reference returns the table of all words as a page.
func reference() string {
	titles := [...]string{honoured: "carried over", named: "left out, with a warning",
		refused: "refused", unseen: "no effect on the program"}
	var b strings.Builder
	b.WriteString("# Words of Compose\n\nGenerated from the table of the converter " +
		"(`go test ./adapter/compose -update`). `*` is any name. A word\ncovers the words below it that " +
		"have no line. See [From Compose](../guides/from-compose.md).\n\n| word | Pando | |\n|---|---|---|\n")
	for _, w := range words {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", w.path, titles[w.treatment],
			strings.ReplaceAll(w.text, "|", "\\|"))
	}
	return b.String()
}

// A value that Pando keeps anyway is no warning, and no option of a folder in memory is dropped in
// silence.
func TestAValueThatPandoKeepsIsNoWarning(t *testing.T) {
	for text, want := range map[string]string{
		"oom_score_adj: 0": "", "oom_score_adj: 500": "oom_score_adj", `umask: "0022"`: "",
		`umask: "0077"`: "", "dns: [127.0.0.11, 192.0.2.1]": "127.0.0.11 is left out", "mem_limit: 64m, memswap_limit: 64m": "",
		"mem_limit: 64m, memswap_limit: 128m": "memswap_limit", "memswap_limit: 64m": "memswap_limit",
		"mem_limit: 64m, mem_swappiness: 0": "", "mem_swappiness: 0": "mem_swappiness",
		`tmpfs: "/a:rw,nosuid,nodev,exec"`: "", `tmpfs: "/a:suid"`: "option suid",
		`tmpfs: "/a:dev"`: "option dev", `tmpfs: "/a:uid=7"`: "option uid=7",
		`tmpfs: "/a:noexec,size=1m"`: "",
	} {
		r, err := parse(t, "services:\n  a: {image: x, "+text+"}\n", Options{Project: "p"})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := ""
		if r.Warnings != nil {
			got = r.Warnings.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: the warnings are %q, want %q", text, got, want)
		}
		if m := r.Specs[0].Tmpfs; strings.Contains(text, "noexec") && (len(m) != 1 || !m[0].NoExec) {
			t.Errorf("%s: the folders in memory are %+v", text, m)
		}
	}
}
