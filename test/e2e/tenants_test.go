package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando/access"
	"pando.run/pando/lab/labtest"
)

// echoing is the rest of a spec.
const echoing = `
command: [./echo]
ports: ["80:8080"]
health: {ready: "tcp 8080"}
scale: {min: 1, max: 3}
`

// hasAudit looks for the deeds of a tenant's token: those of another tenant are left out.
func hasAudit(t *testing.T, p *labtest.Pando, own labtest.Output, secret string) {
	t.Helper()
	all := p.Pando("audit")
	has(t, all, "token acme/ci (anna)", "pin", "service acme/shop", "issue-tenant-token",
		"exec", "echo inside: it runs", "service beta/vault", "deploy", "uid 0", "10.126.0.2")
	if !strings.Contains(own.Text, "service acme/cart") || strings.Contains(own.Text, "vault") ||
		own.Code != 0 {
		t.Errorf("the token sees: %d\n%s", own.Code, own.Text)
	}
	file := p.Must(p.Hosts[0], "cat", filepath.Join(p.Data(p.Hosts[0]), "log", "audit.log"))
	has(t, file, `"verb":"deploy"`, `"object":"service beta/vault"`)
	if strings.Contains(all+file, secret) {
		t.Error("the audit has the secret of a token")
	}
}

// hasBill waits until both tenants have a bill with work, which takes 40 s. The token sees its own.
func hasBill(t *testing.T, p *labtest.Pando, own func() labtest.Output) {
	t.Helper()
	var lines []access.BillLine
	p.AwaitFor(2*time.Minute, "two tenants have a bill", func() (string, bool) {
		out := p.Pando("bill", "-o", "json")
		if err := json.Unmarshal([]byte(out), &lines); err != nil {
			t.Fatal(err)
		}
		done := 0
		for _, l := range lines {
			if l.InstanceSeconds > 1 && l.CPUSeconds > 0 && l.Decisions > 0 && l.BytesIn > 0 {
				done++
			}
		}
		return out, done == 2
	})
	if got := own(); got.Code != 0 || !strings.Contains(got.Text, "acme,20") ||
		strings.Contains(got.Text, "beta") {
		t.Errorf("the bill of the token: %d\n%s", got.Code, got.Text)
	}
}

// A caller without a host uses one tenant of the cluster over TLS, as its token allows, and learns
// nothing of the others. Its token ends at once.
func TestATokenOfATenant(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	one, two := p.Hosts[0], p.Hosts[1]
	p.WithEcho()
	spec := func(name, tenant string) string {
		return p.Write(tenant+".yaml", "name: "+name+"\ntenant: "+tenant+echoing)
	}
	p.Pando("deploy", spec("shop", "acme"), "--wait")
	p.Pando("deploy", spec("vault", "beta"), "--wait")
	issue := func(args ...string) (is access.IssuedToken) {
		t.Helper()
		out := p.Pando(append([]string{"tenant", "token", "add", "acme", "ci", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	is := issue("--may", "scale,exec")
	has(t, p.Pando("tenant", "token", "ls"), "acme", "ci", "read,scale,exec")
	outside := func(token string, args ...string) labtest.Output {
		return p.Run(two, append([]string{"env", "PANDO_API=" + is.API, "PANDO_TOKEN=" + token,
			"PANDO_OPERATOR=anna", p.Bin}, args...)...)
	}
	mine := func(args ...string) labtest.Output { return outside(is.Token, args...) }
	if ps := mine("ps").Text; !strings.Contains(ps, "shop") || strings.Contains(ps, "vault") {
		t.Errorf("the token sees:\n%s", ps)
	}
	has(t, mine("scale", "acme/shop", "2", "--wait").Text, "2")
	has(t, p.Pando("why", "acme/shop"), "token acme/ci (anna)")
	// The program is one of the hosts.
	has(t, mine("exec", "shop", "--", "echo", "inside").Text, "may not host")
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"scale", "beta/vault", "2"}, 10, "not of beta"},
		{[]string{"logs", "beta/vault"}, 10, "not of beta"},
		{[]string{"hosts"}, 10, "no access to GET /v1/hosts"},
		{[]string{"tenant", "token", "ls"}, 10, "no access"},
		{[]string{"deploy", spec("shop", "acme")}, 10, "may not deploy"},
		{[]string{"rm", "shop"}, 10, "may not deploy"},
	} {
		out := mine(c.args...)
		if out.Code != c.code || !strings.Contains(out.Text, c.text) {
			t.Errorf("%v: exit code %d, want %d: %s", c.args, out.Code, c.code, out.Text)
		}
	}
	wrong, replaced := is.Token[:len(is.Token)-8]+"aaaaaaaa", is.Token
	is = issue("--may", "deploy", "--replace")
	for _, token := range []string{wrong, replaced} {
		if out := outside(token, "ps"); out.Code != 10 || strings.Contains(out.Text, token) {
			t.Errorf("a wrong or replaced token: %d %s", out.Code, out.Text)
		}
	}
	has(t, mine("deploy", spec("shop", "acme")).Text, "command without image", "may not host")
	is = issue("--may", "deploy,exec,host", "--replace")
	has(t, mine("deploy", spec("cart", "acme"), "--wait").Text, "cart")
	has(t, mine("exec", "shop", "--", "echo", "inside").Text, "inside")
	hasAudit(t, p, mine("audit"), is.Token)
	hasBill(t, p, func() labtest.Output { return mine("bill", "--csv") })
	p.Pando("tenant", "token", "rm", "acme", "ci")
	if out := mine("ps"); out.Code != 10 {
		t.Errorf("a removed token: %d %s", out.Code, out.Text)
	}
	has(t, p.Must(one, "cat", filepath.Join(p.Data(one), "log", "server.log")),
		"refused a call with a token of a tenant", "token=acme/ci")
}
