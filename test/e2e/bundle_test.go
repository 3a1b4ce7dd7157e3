package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// bundled is the spec of a service with pages in a folder beside the spec.
const bundled = `name: web
bundle: site
command: [/usr/bin/python3, -m, http.server, "8080"]
ports: ["80:8080"]
health: {ready: "tcp 8080"}
place: {spread: host}
scale: {min: 3, max: 6}
`

// TestABundleReachesTheHostsThatNeedIt deploys a folder that the first of three hosts alone has.
func TestABundleReachesTheHostsThatNeedIt(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	site := filepath.Join(p.Dir, "site")
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join("site", "page")
	p.Write(page, "one")
	for _, h := range p.Hosts[1:] {
		p.Must(h, "mount", "-t", "tmpfs", "tmpfs", site)
	}
	p.Up(p.Hosts[0])
	for _, h := range p.Hosts[1:] {
		p.Join(h)
	}
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	web := p.Deploy(bundled)
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	served := func(want string) {
		t.Helper()
		for range 12 { // some of every host
			if got := web.Get(labtest.Client, "/page"); got != want {
				t.Fatalf("an instance serves %q, want %q", got, want)
			}
		}
	}
	served("one")
	has(t, web.Why(), "revision 1; bundle:"+site+" is sha256:")
	has(t, p.Pando("image", "ls"), "bundle:"+site)

	before := web.Status().Latest
	web.Update(bundled) // the same files: nothing to do
	p.Write(page, "two")
	has(t, p.Pando("deploy", "--dry-run", filepath.Join(p.Dir, "web.yaml")), "reads its bundle "+site)
	if after := web.Status().Latest; after != before {
		t.Errorf("the same bundle made revision %d of %d", after, before)
	}
	web.Update(bundled)
	if after := web.Status().Latest; after != before+1 {
		t.Errorf("another bundle is revision %d after %d", after, before)
	}
	served("two")
	p.Write(filepath.Join("site", "key"), "secret")
	if err := os.Chmod(filepath.Join(site, "key"), 0o600); err != nil {
		t.Fatal(err)
	}
	has(t, p.Pando("deploy", filepath.Join(p.Dir, "web.yaml")), "the bundle is without key",
		"`secrets`")
	p.Pando("rollback", "web", "--to", "1")
	p.Await("the first pages", func() (string, bool) {
		got := web.Get(labtest.Client, "/page")
		return got, got == "one"
	})
	none := strings.Replace(bundled, "bundle: site", "bundle: none", 1)
	has(t, web.UpdateFails(3, none), "bundle "+filepath.Join(p.Dir, "none"),
		"name a folder of this host")
}
