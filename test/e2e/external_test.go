package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// machines are two programs on machines without Pando, and the spec of a service for them.
func machines(p *labtest.Pando) (programs []*labtest.Process, spec string) {
	p.Helper()
	p.Up(p.Hosts[0])
	spec = "name: old\nports: [\"80:8080\", \"7007:7007/udp\"]\nhealth: {live: tcp 8080, ready: " +
		"tcp 8080, interval: 200ms}\nendpoints:\n"
	for n, h := range p.Lab.Hosts[1:] {
		text := fmt.Sprintf("TEXT=machine-%d", n+1)
		programs = append(programs, p.Start(h.Name, "env", text, p.WithEcho()))
		spec += fmt.Sprintf("  - %s\n", h.IPv4)
	}
	return programs, spec
}

// Machines without Pando serve a VIP: new connections are spread over them, open ones stay, and one
// that dies gets no new connections until it is back.
func TestAServiceOfMachinesWithoutPando(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	programs, spec := machines(p)
	old := p.Deploy(spec)
	old.AwaitInstances(2)
	old.AwaitPage(labtest.Client)
	seen := map[string]int{}
	for range 40 {
		seen[old.Get(labtest.Client, "/")]++
	}
	if len(seen) != 2 {
		p.Errorf("40 connections reach %v, want both machines", seen)
	}
	for _, from := range []string{labtest.Client, p.Host()} {
		out := p.Run(from, p.WithEcho(), "udp", old.VIP+":7007", "hello")
		if out.Code != 0 || !strings.Contains(out.Text, "hello") {
			p.Errorf("UDP from %s: %d %s", from, out.Code, out.Text)
		}
	}
	holds := []*labtest.Process{old.Hold(labtest.Client), old.Hold(labtest.Client),
		old.Hold(p.Host())}
	p.KillAgent(p.Host())
	p.Up(p.Host())
	for n, h := range holds {
		if out := h.Stop(); out.Code != 0 {
			p.Errorf("connection %d broke: %s", n, out.Text)
		}
	}
	programs[0].Stop()
	old.Await("the dead machine gets no new connections", func(st pando.ServiceStatus) bool {
		none := 0
		for _, i := range st.Instances {
			if i.Weight == 0 {
				none++
			}
		}
		return none == 1
	})
	for range 20 {
		if got := old.Get(labtest.Client, "/"); got != "machine-2" {
			p.Fatalf("a new connection reaches %q", got)
		}
	}
	has(p, old.Why(), "it gets no new connections until it answers")
	p.Start(p.Hosts[1], "env", "TEXT=machine-1", p.WithEcho())
	p.Await("the machine is back", func() (string, bool) {
		got := old.Get(labtest.Client, "/")
		return got, got == "machine-1"
	})
	// Another machine at the end replaces no instance.
	before := old.Status().Instances
	p.Start(labtest.Client, "env", "TEXT=machine-3", p.WithEcho())
	old.Update(spec + fmt.Sprintf("  - %s\n", p.Lab.Client.IPv4))
	old.Await("three instances", func(st pando.ServiceStatus) bool { return len(st.Instances) == 3 })
	for n, i := range old.Status().Instances[:2] {
		if i.ID != before[n].ID {
			p.Errorf("instance %s replaced %s", i.ID, before[n].ID)
		}
	}
	p.Pando("rm", "old", "--wait")
}

func TestEndpointsGoWithNoProgram(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	for words, want := range map[string]string{
		"endpoints: [127.0.0.1:80]":                        "no meaning on another machine",
		"endpoints: [192.0.2.1:80]\ncommand: sleep 1":      "which Pando does not start",
		"endpoints: [192.0.2.1:80, 192.0.2.1:80 weight 9]": "listed twice",
		"endpoints: [192.0.2.1 weight 101]":                "want a weight of 1 to 100",
	} {
		has(p, p.DeployFails(3, "name: old\nports: [80]\n"+words+"\n"), want)
	}
}

// Manifests of the Gateway API lead connections to machines by the weights of their backends.
func TestAGatewayIsDeployed(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	machines(p)
	file := "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\n" +
		"spec: {gatewayClassName: pando, listeners: [{name: web, protocol: TCP, port: 80}]}\n"
	refs := ""
	for n, h := range p.Lab.Hosts[1:] {
		name := fmt.Sprintf("backend-%d", n+1)
		file += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {"+
			"name: %s, labels: {kubernetes.io/service-name: %[1]s}}\nports: [{port: 8080}]\n"+
			"endpoints: [{addresses: [%s]}]\n", name, h.IPv4)
		refs += fmt.Sprintf("{name: %s, port: 8080, weight: %d},", name, n)
	}
	route := "---\napiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {name: " +
		"app}\nspec: {parentRefs: [{name: edge}], rules: [{backendRefs: [" + refs + "]}]}\n"
	path := p.Write("gateway.yaml", file+route)
	has(p, p.Pando("convert", path), "name: app", p.Lab.Hosts[2].IPv4+":8080")
	app := p.DeployFile(path)
	app.AwaitPage(labtest.Client)
	for range 10 {
		if got := app.Get(labtest.Client, "/"); got != "machine-2" {
			p.Fatalf("the backend of weight 0 serves: %s", got)
		}
	}
	even := p.Write("gateway.yaml", file+strings.Replace(route, "weight: 0", "weight: 1", 1))
	p.Pando("deploy", even, "--wait")
	p.Await("both machines serve", func() (string, bool) {
		got := app.Get(labtest.Client, "/")
		return got, got == "machine-1"
	})
	p.Write("bad.yaml", file+strings.Replace(route, "TCPRoute", "HTTPRoute", 1))
	has(p, p.PandoFails(3, "deploy", p.Dir+"/bad.yaml"), "publish a proxy")
}
