package compose

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// parseIn converts compose.yaml of a folder with further files.
func parseIn(t *testing.T, text string, more map[string]string, environ ...string) (Result, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	for name, text := range more {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !Is([]byte(text)) {
		t.Fatal("it is no Compose file")
	}
	return Parse(context.Background(), "compose.yaml", []byte(text), dir, Options{Environ: environ})
}

// find returns the spec of a service, and fails the test without one.
func find(t *testing.T, r Result, err error, name pando.ServiceName) pando.Spec {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Specs {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no service %s", name)
	return pando.Spec{}
}

// A project of several files is one project: the override file next to a usual name, the files of
// COMPOSE_FILE, and those that are included or extended.
func TestAProjectHasSeveralFiles(t *testing.T) {
	const web = "services:\n  web: {image: w, environment: {A: 1}}\n"
	over := map[string]string{"compose.override.yaml": "services: {web: {environment: {B: 2}}}\n",
		"c.yaml": "services: {web: {environment: {C: 3}}}\n"}
	r, err := parseIn(t, web, over)
	if e := find(t, r, err, "web").Environment; e["A"] != "1" || e["B"] != "2" || e["C"] != "" {
		t.Errorf("with its override file it has %v", e)
	}
	r, err = parseIn(t, web, over, "COMPOSE_FILE=compose.yaml:c.yaml")
	if e := find(t, r, err, "web").Environment; e["A"] != "1" || e["B"] != "" || e["C"] != "3" {
		t.Errorf("with COMPOSE_FILE it has %v", e)
	}
	r, err = parseIn(t, "include: [db/compose.yaml, {path: [q.yaml], env_file: q.env}]\nservices:\n"+
		"  web: {image: w, extends: {file: base/b.yaml, service: b}, environment: {B: 2}}\n",
		map[string]string{"db/compose.yaml": "services:\n  db: {image: d, env_file: own.env}\n",
			"db/own.env": "N=1\n", "db/.env": "X=y\n", "base/b.yaml": "services:\n  b: {image: b, environment: {A: 1}}\n",
			"q.yaml": "services:\n  q: {image: 'q:${TAG}'}\n", "q.env": "TAG=7\n"})
	if e := find(t, r, err, "web").Environment; e["A"] != "1" || e["B"] != "2" {
		t.Errorf("with an extended file it has %v", e)
	}
	if e := find(t, r, err, "db").Environment; e["N"] != "1" {
		t.Errorf("the included service has %v", e)
	}
	if got := find(t, r, err, "q").Image.Reference; got != "q:7" || len(r.Warnings) > 0 {
		t.Errorf("the image is %s, with warnings %v", got, r.Warnings)
	}
}

// A problem in a further file names that file and its line. A file that cannot be read well is
// refused at the word that names it.
func TestProblemsOfFurtherFilesHaveTheirPlace(t *testing.T) {
	const include = "include: [db.yaml]\nservices: {}\n"
	for text, c := range map[string]struct {
		more map[string]string
		want string
	}{
		"services:\n  web: {image: w}\n": {map[string]string{"compose.override.yml": "services:\n  web:\n    privileged: true\n"},
			"compose.override.yml:3:5: services.web.privileged"},
		include: {map[string]string{"db.yaml": "services:\n  db:\n    image: d\n    pid: host\n"},
			"db.yaml:4:5: services.db.pid"},
		"services:\n  web: {extends: {file: b.yaml, service: b}}\n": {map[string]string{
			"b.yaml": "services:\n  b:\n    image: b\n    ipc: host\n"}, "b.yaml:4:5: services.web.ipc"},
		"include: [gone.yaml]\nservices: {}\n":                   {nil, "compose.yaml:1:1: include: "},
		"include: [https://example.com/a.git]\nservices: {}\n":   {nil, "on another machine"},
		"include: [/dev/zero]\nservices: {}\n":                   {nil, "want a file of at most 1 MiB"},
		"include: [{path: a.yaml, env_file: e}]\nservices: {}\n": {map[string]string{"a.yaml": "services: {}\n"}, "env_file"},
		"include: [{path: p.yaml, project_directory: /}]\n": {map[string]string{
			"p.yaml": "services: {p: {image: p, configs: [k]}}\nconfigs: {k: {file: /etc/hostname}}\n"}, "outside the folder"},
		"include: [bad.yaml]\nservices: {}\n":                         {map[string]string{"bad.yaml": "services:\n\tx: y\n"}, "bad.yaml:2:"},
		"include: [compose.yaml]\nservices: {a: {image: a}}\n":        {nil, "compose.yaml"},
		"services: {a: {image: a, label_file: /etc/hostname}}\n":      {nil, "outside the folder"},
		"services:\n  a:\n    image: a\n    ports: ['80:${P}']\n":     {nil, "compose.yaml:4:13: services.a.ports: 80:${P}: variable P has no value"},
		"services:\n  a:\n    image: a\n    hostname: 'm.${D}'\n":     {nil, "compose.yaml:4:5: services.a.hostname: variable D has no value"},
		"services:\n  a:\n    image: 'a:${TAG}'\n":                    {nil, "compose.yaml:3:5: services.a.image: variable TAG has no value"},
		"services:\n  a:\n    image: a\n    volumes: ['${V}:/x:z']\n": {nil, "variable V has no value"},
	} {
		_, err := parseIn(t, text, c.more)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", text, err, c.want)
		}
	}
}

// The variables that steer Compose itself count, from the environment and from .env.
func TestComposesOwnVariablesCount(t *testing.T) {
	const text = "services:\n  web: {image: w}\n  worker: {image: 'w${X:-0}', profiles: [jobs]}\n"
	for environ, more := range map[string]map[string]string{
		"A=b":                     {".env": "COMPOSE_PROFILES=other,jobs\n"},
		"COMPOSE_PROFILES=jobs":   nil,
		"COMPOSE_PROFILES=*":      nil,
		"COMPOSE_ENV_FILES=p.env": {"p.env": "COMPOSE_PROFILES=jobs\nX=1\n"},
	} {
		r, err := parseIn(t, text, more, environ)
		find(t, r, err, "worker")
	}
	r, err := parseIn(t, text, map[string]string{".env": "COMPOSE_PROFILES=jobs\n"},
		"COMPOSE_DISABLE_ENV_FILE=1", "COMPOSE_PROJECT_NAME=my_shop")
	if web := find(t, r, err, "web"); len(r.Specs) != 1 || web.Tenant != "my-shop" {
		t.Errorf("there are %d services, of tenant %s", len(r.Specs), web.Tenant)
	}
}

// A file that begins with a byte order mark is a Compose file.
func TestAByteOrderMarkIsSkipped(t *testing.T) {
	r, err := parseIn(t, "\ufeffservices:\n  web: {image: w}\n",
		map[string]string{"compose.override.yaml": "\ufeffservices: {web: {user: '7'}}\n"})
	if got := find(t, r, err, "web").User; got != "7" {
		t.Errorf("the user is %q", got)
	}
}

// A service keeps every name that its file gives it.
func TestNamesOfAFileStayReachable(t *testing.T) {
	r, err := parseIn(t, `services:
  Web_App:
    image: w
    container_name: shop-web
    networks: {default: {aliases: [api.internal, WWW]}}
    depends_on: [my.db]
  my.db: {image: d}
  1st: {image: f, links: ["my.db:sql"]}
`, nil)
	web := find(t, r, err, "web-app")
	if got := strings.Join(web.Aliases, " "); got != "api.internal shop-web web_app www" {
		t.Errorf("web-app has the names %s", got)
	}
	if web.Needs["my-db"] == "" {
		t.Errorf("web-app needs %v", web.Needs)
	}
	if got := strings.Join(find(t, r, err, "my-db").Aliases, " "); got != "my.db sql" {
		t.Errorf("my-db has the names %s", got)
	}
	if got := strings.Join(find(t, r, err, "s-1st").Aliases, " "); got != "1st" {
		t.Errorf("s-1st has the names %s", got)
	}
	_, err = parseIn(t, "services: {a_b: {image: a}, a.b: {image: b}}\n", nil)
	if err == nil || !strings.Contains(err.Error(), "a_b becomes a-b, and so does a.b") {
		t.Errorf("two services of one name: %v", err)
	}
	r, err = parseIn(t, "services: {a: {image: a, container_name: bb}, bb: {image: b}}\n", nil)
	if a := find(t, r, err, "a"); len(a.Aliases) > 0 || len(r.Warnings) != 1 {
		t.Errorf("a has the names %v, with warnings %v", a.Aliases, r.Warnings)
	}
}

// Other services reach the ports that the file names, also of a service that publishes another one.
func TestPortsThatNeighboursUseArePublished(t *testing.T) {
	r, err := parseIn(t, `services:
  minio: {image: quay.io/minio/minio:1, ports: ["127.0.0.1:9001:9001", "9443"]}
  mq: {image: "rabbitmq:3-management", ports: ["15672:15672"]}
  n8n: {image: n8n, ports: ["5678:5678"]}
  db: {image: custom}
  runner: {image: r, environment: {BROKER: "http://n8n:5679", DB_HOST: db, DB_PORT: "5433"}}
`, nil)
	for name, want := range map[pando.ServiceName]string{
		"minio": "9001 9443 9000", "mq": "15672>15672 5672", "n8n": "5678>5678 5679", "db": "5433",
	} {
		got := ""
		for _, p := range find(t, r, err, name).Ports {
			if p.Published != p.Target || p.Protocol != pando.TCP {
				t.Errorf("%s has %+v", name, p)
			}
			got += " " + strings.TrimPrefix(strings.ReplaceAll(hostText(p), "0>", ">"), ">")
		}
		if got[1:] != want {
			t.Errorf("%s has the ports %s, want %s", name, got[1:], want)
		}
	}
	for _, want := range []string{"runner uses n8n:5679", "5672 is published as well",
		"port 9001 of 127.0.0.1 is left out"} {
		if !strings.Contains(r.Warnings.Error(), want) {
			t.Errorf("%q is no warning of\n%v", want, r.Warnings)
		}
	}
}

func hostText(p pando.Port) string {
	text := string(spec.Format(pando.Spec{Name: "x", Ports: []pando.Port{p}}))
	_, port, _ := strings.Cut(text, `ports: ["`)
	port, _, _ = strings.Cut(port, ":")
	if _, host, ok := strings.Cut(text, `host: ["`); ok {
		host, _, _ = strings.Cut(host, `"`)
		host, _, _ = strings.Cut(host, ":")
		return host + ">" + port
	}
	return port
}

// The words of a hardened file are taken.
func TestAHardenedServiceIsConverted(t *testing.T) {
	r, err := parseIn(t, `services:
  web:
    image: w
    read_only: true
    tmpfs: [/run, "/tmp:size=16m"]
    shm_size: 256m
    stop_signal: rtmin+3
    networks: [back]
    cpu_quota: 50000
    userns_mode: host
    dns: 192.0.2.1
    volumes: [site:/srv]
networks: {back: {internal: true}}
volumes: {site: {driver_opts: {type: none, o: bind, device: /srv/site}}}
`, nil)
	s := find(t, r, err, "web")
	if len(s.Tmpfs) != 3 || s.Tmpfs[0].Path != "/run" || s.Tmpfs[2].Bytes != 256<<20 {
		t.Errorf("its memory is %+v", s.Tmpfs)
	}
	if s.StopSignal != "SIGRTMIN+3" || s.Resources.CPUs != 0.5 || s.UsernsMode != "host" ||
		len(s.Reach) != 1 || s.Reach[0] != pando.ReachTenant {
		t.Errorf("the service is %+v", s)
	}
	if len(s.Folders) != 1 || s.Folders[0] != (pando.Folder{Path: "/srv/site", At: "/srv", Write: true}) {
		t.Errorf("its folders are %+v", s.Folders)
	}
}

// A volume of several services belongs to the first of them to start, and the others share it. All
// services that are joined by volumes share those of one, so that they have one host.
func TestServicesShareTheirVolumes(t *testing.T) {
	r, err := parseIn(t, `services:
  web: {image: w, volumes: ["media:/m", "own:/o"], depends_on: [migrate]}
  migrate: {image: w, volumes: ["media:/m"]}
  cron: {image: c, volumes: ["media:/x:ro", "logs:/l"]}
  alone: {image: a, volumes: ["logs:/l"], scale: 0}
  other: {image: o, volumes: ["data:/d"]}
volumes: {media: {}, own: {}, logs: {}, data: {}}
`, nil)
	for name, want := range map[pando.ServiceName]string{
		"cron": "media:/x:ro,shared logs:/l:shared", "migrate": "media:/m:of=cron",
		"web": "media:/m:of=cron own:/o", "alone": "logs:/l:of=cron", "other": "data:/d",
	} {
		text := string(spec.Format(find(t, r, err, name)))
		_, line, _ := strings.Cut(text, "volumes: [")
		line, _, _ = strings.Cut(line, "]")
		if got := strings.ReplaceAll(line, `"`, ""); got != strings.ReplaceAll(want, " ", ", ") {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}
	if r.Specs[0].Name == "alone" {
		t.Error("a service comes before the one whose volume it has")
	}
}

// The names of a machine and its init are the spec's.
func TestTheMachineIsAsTheFileSays(t *testing.T) {
	for words, want := range map[string]pando.Spec{
		"hostname: rabbit1":                                {Hostname: "rabbit1"},
		"hostname: mail, domainname: example.com":          {Hostname: "mail.example.com"},
		"hostname: m.example.com, domainname: example.com": {Hostname: "m.example.com"},
		"init: true": {Init: true}, "init: false": {}, "domainname: example.com": {},
	} {
		r, err := parseIn(t, "services: {mq: {image: a, "+words+"}}\n", nil)
		s := find(t, r, err, "mq")
		if s.Hostname != want.Hostname || s.Init != want.Init {
			t.Errorf("%s: %q, %t", words, s.Hostname, s.Init)
		}
	}
}
