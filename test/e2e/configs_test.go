package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// fed returns the spec of examples/haproxy with more lines in its template.
func fed(p *labtest.Pando, host string, lines string) string {
	p.Helper()
	text, err := os.ReadFile("../../examples/haproxy/haproxy.cfg")
	if err != nil {
		p.Fatal(err)
	}
	p.Write("haproxy.cfg", string(text)+lines)
	spec, err := os.ReadFile("../../examples/haproxy/pando.yaml")
	if err != nil {
		p.Fatal(err)
	}
	_, words, _ := strings.Cut(string(spec), "\nname:")
	return "name:" + words + "secrets: [limit]\nplace: {only: host=" + host + "}\n"
}

// backends deploys hello with two instances on a host.
func backends(p *labtest.Pando, host string) {
	p.Helper()
	hello, err := os.ReadFile("../../examples/hello/hello.py")
	if err != nil {
		p.Fatal(err)
	}
	p.Write("hello.py", string(hello))
	p.Deploy("name: hello\ncommand: [/usr/bin/python3, hello.py]\nports: [\"80:8080\"]\n" +
		"health: {ready: tcp 8080}\nscale: {min: 2, max: 4}\nplace: {only: host=" + host + "}\n")
}

// serves waits until a number of instances answer behind a proxy.
func serves(p *labtest.Pando, edge *labtest.Service, want int) {
	p.Helper()
	p.Await("the proxy reaches each instance", func() (string, bool) {
		seen := map[string]bool{}
		for range 2 * want {
			out := p.Run(labtest.Client, "curl", "-sf", "-m", "2", edge.URL("/"))
			if name := strings.TrimSpace(out.Text); out.Code == 0 && strings.HasPrefix(name, "hello-") {
				seen[name] = true
			}
		}
		return fmt.Sprint(len(seen), " instances"), len(seen) == want
	})
}

// HAProxy is fed with the instances of a service on another host, by the templates of its spec. A
// change of that service alone writes a new file. A content that its check refuses changes nothing.
func TestAProxyIsFedByATemplate(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	backends(p, p.Hosts[0])
	set := func(limit string) {
		p.Helper()
		p.Must(p.Host(), "bash", "-c", "printf '"+limit+"' | "+p.Bin+" secret set limit")
	}
	set("fullconn 100")
	edge := p.Deploy(fed(p, p.Hosts[1], `	{{secret "limit"}}`+"\n"))
	first := edge.AwaitInstances(1).Instances[0].ID
	served := func(want int) { p.Helper(); serves(p, edge, want) }
	file := func() string {
		p.Helper()
		return p.Pando("exec", "edge", "--", "stat", "-c", "%i %a %y", "/run/configs/haproxy.cfg")
	}
	served(2)
	before := file()
	p.Deploy(labtest.Echo("other")).AwaitInstances(1)
	p.Pando("scale", "hello", "3", "--wait")
	served(3)
	p.Pando("scale", "hello", "2", "--wait")
	served(2)
	if now := file(); now == before || !strings.Contains(now, " 400 ") {
		t.Errorf("the file of the proxy is %q, and was %q", now, before)
	}
	p.KillAgent(p.Hosts[1])
	p.Up(p.Hosts[1])
	set("nonsense-hush")
	p.Await("the proxy keeps its file", func() (string, bool) {
		text := p.Pando("ps")
		return text, strings.Contains(text, pando.ConfigKept+"haproxy.cfg")
	})
	kept := file()
	served(2)
	why := edge.Why()
	has(t, why, "it has a new haproxy.cfg", pando.ConfigKept+"haproxy.cfg: its check", "exited with 1",
		"its output is left out")
	if strings.Contains(why, "hush") {
		t.Errorf("a decision has a secret: %s", why)
	}
	set("fullconn 200")
	p.Await("the proxy has a new file", func() (string, bool) {
		return file(), file() != kept
	})
	has(t, p.Pando("exec", "edge", "--", "cat", "/run/configs/haproxy.cfg"), "fullconn 200")
	for _, host := range p.Hosts {
		if out := p.Run(host, "grep", "-rlaF", "nonsense-hush", p.Data(host)); out.Code != 1 {
			t.Errorf("files of %s have the secret: %s", host, out.Text)
		}
	}
	if now := edge.AwaitInstances(1).Instances[0].ID; now != first {
		t.Errorf("instance %s replaced %s", now, first)
	}
	p.Write("haproxy.cfg", "backend b\n{{range endpoints \"hello\"}}{{.Adress}}{{end}}\n")
	bad := "name: bad\ncommand: [x]\nconfigs: {haproxy.cfg: {file: haproxy.cfg, template: true}}\n"
	has(t, p.DeployFails(3, bad), "configs.haproxy.cfg: the template of haproxy.cfg: line 2:",
		"can't evaluate field Adress")
}
