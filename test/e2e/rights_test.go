package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// A host without a server deploys once it may, with files that it alone has. Each refusal names the
// command that gives the right.
func TestAHostDoesWhatItMay(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	site := filepath.Join(p.Dir, "site")
	p.Must(one, "mkdir", site)
	p.Write("site/page", "one")
	for _, h := range []string{one, three} {
		p.Must(h, "mount", "-t", "tmpfs", "tmpfs", site)
	}
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	spec := p.Write("web.yaml", bundled)
	on2 := func(args ...string) labtest.Output {
		return p.Run(two, append([]string{p.Bin}, args...)...)
	}
	refused := func(right string, args ...string) {
		t.Helper()
		out := on2(args...)
		if out.Code != 10 {
			t.Errorf("%v: exit code %d, want 10", args, out.Code)
		}
		has(t, out.Text, "host "+two+" may not "+right, "`pando hosts allow "+two+" "+right+"`")
	}
	refused("deploy", "deploy", spec)
	refused("admit", "token")
	refused("admit", "hosts", "rm", three)
	has(t, on2("hosts", "allow", two, "deploy").Text, "server's host only")
	has(t, p.Run(one, p.Bin, "hosts", "allow", two, "all").Text, "want deploy, exec or admit")
	has(t, p.Run(one, p.Bin, "hosts", "allow", "host9", "exec").Text, "not found", "`pando hosts`")
	has(t, p.Run(one, p.Bin, "hosts", "deny", one, "exec").Text, "it has a server")

	has(t, p.Must(one, "env", "PANDO_OPERATOR=anna", p.Bin, "hosts", "allow", two, "deploy"),
		two+": its operators may deploy now")
	if h := seen(p, one)[two]; h.RightsText() != "deploy" || h.Rights["deploy"].By != "anna" {
		t.Errorf("the rights are %+v", h.Rights)
	}
	has(t, p.Must(two, p.Bin, "deploy", spec, "--wait"), "web")
	p.Await("an instance on each host", func() (string, bool) {
		st, err := p.API(one).Service(t.Context(), pando.DefaultService("web"))
		return st.Reason, err == nil && st.InRotation == 3 && len(seats(st)) == 3
	})
	has(t, p.Must(one, p.Bin, "why", "web"), "operator "+two, "bundle:"+site+" is sha256:")
	refused("exec", "exec", "web", "--", "cat", "page")
	has(t, p.Pando("hosts", "allow", two, "exec", "admit"), "may exec, admit now")
	has(t, p.Must(two, p.Bin, "exec", "web", "--", "cat", "page"), "one")
	var is pando.Invitation
	if err := json.Unmarshal([]byte(p.Must(two, p.Bin, "token", "-o", "json")), &is); err != nil ||
		is.Join != "10.126.0.1:7401" {
		t.Errorf("the invitation is %+v, %v", is, err)
	}
	p.Down(two) // the rights are the host's, not its agent's
	p.Up(two)
	p.Write("site/page", "two")
	has(t, p.Must(two, p.Bin, "deploy", spec, "--wait"), "web")
	p.Await("the new page", func() (string, bool) {
		got := p.Must(one, p.Bin, "exec", "web", "--", "cat", "page")
		return got, strings.Contains(got, "two")
	})
	p.Must(two, p.Bin, "rollback", "web", "--wait")
	p.Pando("hosts", "deny", two, "deploy", "exec", "admit")
	refused("deploy", "rollback", "web")
	refused("exec", "exec", "web", "--", "cat", "page")
	refused("admit", "token")
	if h := seen(p, one)[two]; h.RightsText() != "-" || h.Rights["exec"].May {
		t.Errorf("the rights are %+v", h.Rights)
	}
}
