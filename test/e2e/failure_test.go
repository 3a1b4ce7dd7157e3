package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// If a service cannot serve, the failed command and `pando why` show the cause. They also show the
// answer of the probe and the last lines of the log.
func TestFailuresNameTheirCause(t *testing.T) {
	t.Parallel()
	const short = "8s" // enough for a program and a probe of it on a busy machine
	p := labtest.Up(t)
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"missing":  {"command: [no-such-program]", []string{"no-such-program", "PATH"}},
		"notfound": {"command: [./nothing]", []string{"there is no program", "working_dir"}},
		"atonce": {`command: [sh, -c, "echo no database >&2; exit 3"]`,
			[]string{"exited with 3", "no database"}},
		"wrongport": {`command: [python3, -u, -c, "print('listening on 9999'); import socket; ` +
			`s = socket.create_server(('', 9999)); s.accept()"]`,
			[]string{"not ready within " + short, "probe tcp 8080", "refused", "listening on 9999"}},
		"inuse": {`command: [python3, -c, "import socket; a = socket.socket(); ` +
			`a.bind(('', 8080)); b = socket.create_server(('', 8080))"]`,
			[]string{"exited with 1", "Address already in use"}},
		"nouser": {"command: [./echo]\nuser: nobody-here",
			[]string{`no user "nobody-here"`, "`user`"}},
		"silent": {`command: [sleep, "60"]`, []string{"not ready within " + short, "refused"}},
		"sick": {"command: [./echo]\nhealth: {ready: \"http GET /get?url=http://127.0.0.1:1/\", " +
			"ready_within: " + short + "}", []string{"502", "connection refused"}},
		"execfails": {
			"command: [./echo]\nhealth: {ready: \"exec sh -c 'echo not yet; exit 4'\", ready_within: " +
				short + "}",
			[]string{"exited with 4", "not yet"},
		},
		"hog": {`command: [python3, -c, "b = bytearray(300 << 20)"]` + "\nresources: {memory: 24M}",
			[]string{"resources.memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := p.In(t)
			within := "30s" // it ends by itself
			if strings.HasPrefix(c.want[0], "not ready") {
				within = short
			}
			health := fmt.Sprintf("health: {ready: \"tcp 8080\", ready_within: %s}\n", within)
			if strings.Contains(c.spec, "health:") {
				health = ""
			}
			spec := fmt.Sprintf("name: %s\nports: [\"80:8080\"]\n", name) + health + c.spec
			said := p.DeployFails(7, spec)
			why := p.Pando("why", name)
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("the command does not print %q:\n%s", want, said)
				}
				if !strings.Contains(why, want) {
					t.Errorf("why does not print %q:\n%s", want, why)
				}
			}
		})
	}
}

func TestMemoryHogAmongTheServingIsReplaced(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "resources: {memory: 48M}"))
	first := web.Status().Instances[0].ID
	p.Run(labtest.Client, "curl", "-s", "--max-time", "10", web.URL("/eat?mb=200"))
	web.Await("another instance",
		func(st pando.ServiceStatus) bool { return st.InRotation == 1 && st.Instances[0].ID != first })
	if why := web.Why(); !strings.Contains(why, "resources.memory") {
		t.Errorf("why does not name the limit:\n%s", why)
	}
}

// Instances reach other machines of the lab, the host itself, and names; replies come back to them.
func TestInstancesReachOut(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	outside := p.Start(labtest.Client, "python3", "-u", "-m", "http.server", "--directory", p.Dir,
		"8000")
	outside.AwaitText("Serving")
	p.Write("page.txt", "from the outside")
	got := web.Get(labtest.Client, "/get?url=http://"+p.Lab.Client.IPv4+":8000/page.txt")
	if got != "from the outside" {
		t.Errorf("an instance that asks a machine of the network got %q", got)
	}
	if !strings.Contains(outside.Text(), p.Lab.Hosts[0].IPv4+" ") {
		t.Errorf("the other machine saw a source that is not the host's address:\n%s", outside.Text())
	}
}
