package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// A spec file runs once without a deploy. Nothing of the run is left.
func TestASpecFileRunsOnce(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	file := p.Write("once.yaml", `name: report
command: [sh, -c, 'echo "report of $GREETING"; ls /data | wc -l; echo x >/data/x && exit 3']
environment: {GREETING: hello}
ports: [8080]
volumes: ['data:/data']
scale: {min: 2, max: 4}
`)
	out := p.PandoFails(3, "run", file)
	has(t, out, "report of hello\n0\n")
	has(t, p.PandoFails(3, "run", file), "report of hello\n0\n") // with new volumes
	has(t, p.Pando("run", file, "--", "sh", "-c", "echo in $PANDO_SERVICE"), "in report-run-")
	cat := p.Run(p.Host(), "bash", "-c", "echo typed | "+p.Bin+" run -i "+file+" -- cat")
	if cat.Code != 0 || !strings.Contains(cat.Text, "typed") {
		t.Errorf("with an input: code %d\n%s", cat.Code, cat.Text)
	}
	has(t, p.PandoFails(2, "run", "--detach", file), "--detach needs a deployed service")
	two := p.Write("two.yaml", "name: a\ncommand: [true]\n---\nname: b\ncommand: [true]\n")
	has(t, p.PandoFails(3, "run", two), "2 services (a, b)")
	kept := p.Write("kept.yaml", "name: kept\nkind: stateful\ncommand: [sleep, inf]\n"+
		"volumes: ['data:/data']\n")
	has(t, p.PandoFails(5, "run", kept), "pando deploy")
	p.PandoFails(4, "run", "nowhere.yaml")

	long := p.Write("long.yaml", "name: long\ncommand: [sleep, inf]\n")
	caller := p.Start(p.Host(), p.Bin, "run", long)
	p.Await("the run of the caller", func() (string, bool) {
		ps := p.Pando("ps")
		return ps, strings.Contains(ps, "long-run-") && strings.Contains(ps, "running")
	})
	caller.Stop() // the signal goes to the command
	killed := p.Run(p.Host(), "bash", "-c", p.Bin+" run "+long+` & caller=$!
until `+p.Bin+` ps | grep "long-run-.*running"; do :; done; kill -9 $caller`)
	has(t, killed.Text, "long-run-")
	p.Await("a cluster without services", func() (string, bool) {
		ps := p.Pando("status")
		return ps, !strings.Contains(ps, "-run-")
	})
}
