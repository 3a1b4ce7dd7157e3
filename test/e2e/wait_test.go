package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// `deploy --wait` returns when every host steers the service, and not its own host alone. So the
// first connection to a new VIP succeeds by way of any host.
func TestAfterWaitEveryHostSteersTheService(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Flags: []string{"--pool", "1"}})
	for n := range 10 {
		s := p.Deploy(labtest.Echo(fmt.Sprint("web-", n)))
		for _, host := range []string{p.Hosts[2], p.Hosts[1], labtest.Client} {
			if out := page(p, host, s.URL("/")); out.Code != 0 {
				p.Errorf("the first connection to %s from %s: %s", s.Name, host, out.Text)
			}
		}
		p.Pando("rm", s.Name)
	}
	s := p.Deploy(labtest.Echo("late"))
	for try := 1; !heldBack(p, s, try); try++ {
		if try == 5 {
			p.Fatal("five times the lease of a stopped agent ended before its host was named")
		}
	}
}

// heldBack deploys a revision while the agent of a host without an instance is stopped. The wait
// names the host, and ends once the agent has run on. heldBack returns false if the host lost its
// lease too early.
func heldBack(p *labtest.Pando, s *labtest.Service, try int) bool {
	p.Helper()
	host := p.Hosts[1]
	if homeOf(p, s.AwaitInstances(1)) == host {
		host = p.Hosts[2]
	}
	pid := strings.TrimSpace(p.Must(host, "cat", "/run/pando/agent.pid"))
	file := p.Write("late.yaml", labtest.Echo("late", fmt.Sprintf("environment: {TEXT: %q}",
		fmt.Sprint(try))))
	p.Must(host, "kill", "-STOP", pid)
	deploy := p.Start(p.Host(), p.Bin, "deploy", "--wait", file)
	named := false
	p.Await("a wait for "+host, func() (string, bool) {
		text := deploy.Text()
		named = strings.Contains(text, "waiting: host "+host+" has not confirmed the steering yet")
		return text, named || strings.Contains(text, "VIP")
	})
	p.Must(host, "kill", "-CONT", pid)
	out := deploy.Wait()
	warned := strings.Contains(out.Text, "warning:")
	if out.Code != 0 && !(out.Code == 7 && warned) {
		p.Fatalf("deploy: code %d: %s", out.Code, out.Text)
	}
	return named && !warned
}
