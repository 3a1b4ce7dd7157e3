// Package apps deploys applications that people use, each from the Compose file of its own
// documentation and an image of packages of this machine. Its own client uses it, before and after a
// restart and a rollout.
package apps

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/lab/labtest"
)

// app is an application: the folder of testdata with its name, and its own client. VIP stands for
// its address.
type app struct {
	service    string
	needs      []string // programs of this machine
	put        []string // stores a word, or is not there
	get, want  string   // a line of a shell, and what it prints
	forgets    bool     // its data are gone after a restart
	port       string   // of HTTP, under load through the rollout
	extraImage string
}

var apps = map[string]app{
	"nginx": {service: "web", needs: []string{"nginx"}, port: "80",
		get: "curl -sSm 5 http://VIP/", want: "it works"},
	"haproxy": {service: "haproxy", needs: []string{"haproxy"}, port: "80", extraImage: "web.yaml",
		get: "curl -sSm 5 http://VIP/", want: "it works"},
	"node": {service: "backend", needs: []string{"node"}, port: "8000",
		get: "curl -sSm 5 http://VIP:8000/", want: "it works"},
	"redis": {service: "cache", needs: []string{"redis-server"},
		put: []string{"redis-cli -h VIP -a eYVX7EwVmmxKPCDmwMtyKVge8oLd2t81 --no-auth-warning set word aspen",
			"OK"},
		get:  "redis-cli -h VIP -a eYVX7EwVmmxKPCDmwMtyKVge8oLd2t81 --no-auth-warning get word",
		want: "aspen"},
	"postgresql": {service: "db", needs: []string{"/usr/lib/postgresql/15/bin/postgres", "psql"},
		put: []string{"PGPASSWORD=example psql -qAth VIP -U postgres -c " +
			"\"create table words (word text)\" -c \"insert into words values ('aspen') returning word\"", "aspen"},
		get: "PGPASSWORD=example psql -qAth VIP -U postgres -c 'select word from words'", want: "aspen"},
	"mariadb": {service: "db", needs: []string{"mariadbd", "mariadb"},
		put: []string{"mariadb -h VIP -u root -pexample -N -e \"create database d; create table d.words " +
			"(word text); insert into d.words values ('aspen'); select 'stored'\"", "stored"},
		get: "mariadb -h VIP -u root -pexample -N -e 'select word from d.words'", want: "aspen"},
	"rabbitmq": {service: "rabbitmq", needs: []string{"rabbitmqctl"},
		put: []string{"/usr/bin/python3 DIR/publish.py VIP put", "stored"},
		get: "/usr/bin/python3 DIR/publish.py VIP get", want: "aspen"},
	"memcached": {service: "memcached", needs: []string{"memcached"}, forgets: true,
		put: []string{`exec 3<>/dev/tcp/VIP/11211; printf 'set word 0 0 5\r\naspen\r\n' >&3; head -1 <&3`,
			"STORED"},
		get:  `exec 3<>/dev/tcp/VIP/11211; printf 'get word\r\n' >&3; head -2 <&3 | tail -1`,
		want: "aspen"},
	"prometheus": {service: "prometheus", needs: []string{"prometheus"},
		get:  "curl -sSm 5 'http://VIP:9090/api/v1/query?query=up' | grep -o '\"1\"'",
		want: `"1"`},
	"php": {service: "php-apache", needs: []string{"php"},
		put: []string{"echo aspen > DIR/word; curl -sSm 5 -F word=@DIR/word http://VIP/", "stored"},
		get: "curl -sSm 5 http://VIP/", want: "aspen"},
	"python": {service: "web", needs: []string{"/usr/bin/python3"},
		put: []string{"curl -sSm 5 -d aspen http://VIP:8000/", "stored"},
		get: "curl -sSm 5 http://VIP:8000/", want: "aspen"},
	"mosquitto": {service: "mosquitto", needs: []string{"mosquitto", "mosquitto_sub"},
		put: []string{"mosquitto_pub -h VIP -q 1 -r -t word -m aspen && echo stored", "stored"},
		get: "mosquitto_sub -h VIP -t word -C 1 -W 5", want: "aspen"},
}

// chosen are the applications of a plain run. PANDO_APPS=all runs all, and PANDO_APPS=NAME one.
var chosen = []string{"nginx", "redis"}

func TestApplicationsWorkByTheirOwnComposeFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("it builds images and deploys them: make test-all runs it")
	}
	wanted := os.Getenv("PANDO_APPS")
	p := labtest.Up(t)
	for name, a := range apps {
		if wanted != "all" && name != wanted && (wanted != "" || !slices.Contains(chosen, name)) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, program := range a.needs {
				if !found(program) {
					t.Skipf("needs %s", program)
				}
			}
			use(p.In(t), name, a)
		})
	}
}

func found(program string) bool {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}

// use deploys an application, and uses it before and after a restart and a rollout.
func use(p *labtest.Pando, name string, a app) {
	p.Helper()
	dir := filepath.Join(p.Dir, name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		p.Fatal(err)
	}
	p.Pando("image", "build", filepath.Join(dir, "image.yaml"))
	if a.extraImage != "" {
		p.Pando("image", "build", filepath.Join(dir, a.extraImage))
	}
	file := filepath.Join(dir, "compose.yaml")
	p.Pando("deploy", "--wait", file)
	key := pando.ServiceKey{Tenant: pando.Tenant(name), Name: pando.ServiceName(a.service)}
	service, err := p.API(p.Host()).Service(p.Context(), key)
	if err != nil {
		p.Fatal(err)
	}
	client := client{p, strings.NewReplacer("VIP", service.VIP, "DIR", dir)}
	client.stores(a)
	client.reads(a, "after the deploy")
	p.Pando("restart", "--wait", key.String())
	if a.forgets {
		client.stores(a)
	}
	client.reads(a, "after a restart")
	end := func() {}
	if a.port != "" {
		end = client.load(service.VIP + ":" + a.port)
	}
	edition := "services: {" + a.service + ": {environment: {EDITION: second}}}\n"
	if err := os.WriteFile(filepath.Join(dir, "compose.second.yaml"), []byte(edition), 0o644); err != nil {
		p.Fatal(err)
	}
	p.Pando("deploy", "--wait", "--env", "second", file)
	end()
	if a.forgets {
		client.stores(a)
	}
	client.reads(a, "after a rollout")
	p.Pando("rm", "--wait", key.String())
}

// client is a machine outside the cluster.
type client struct {
	*labtest.Pando
	words *strings.Replacer
}

// says waits for the output of a line of a shell: an application may need a moment after its port
// accepts connections.
func (c client) says(line, want, when string) {
	c.Helper()
	c.Await(when+": "+want, func() (string, bool) {
		out := c.Run(labtest.Client, "bash", "-c", c.words.Replace(line))
		got := strings.TrimSpace(out.Text)
		return got, got == want
	})
}

func (c client) stores(a app) {
	c.Helper()
	if a.put != nil {
		c.says(a.put[0], a.put[1], "the first use")
	}
}

func (c client) reads(a app, when string) { c.Helper(); c.says(a.get, a.want, when) }

// load asks for pages, and returns what waits for the end and demands that each was answered.
func (c client) load(address string) (end func()) {
	c.Helper()
	ramp := c.Start(labtest.Client, labtest.Build(c.Pando, "./demo"), "load", "--timeout", "60s", "--address",
		address, "--schedule", "20,15s:20", "--connections", "8")
	return func() {
		out := ramp.Wait()
		answered, offered, broken := 0, 0, 0
		for line := range strings.Lines(out.Text) {
			var r load.Report
			if json.Unmarshal([]byte(line), &r) == nil {
				answered, offered, broken = answered+r.Answered, offered+r.Offered, broken+r.Broken
			}
		}
		if out.Code != 0 || answered != offered || broken != 0 || offered == 0 {
			c.Errorf("of %d requests %d were answered, %d connections broke:\n%s", offered, answered,
				broken, out.Text)
		}
	}
}
