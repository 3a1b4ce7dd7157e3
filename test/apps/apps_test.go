// Package apps deploys applications that people use, each from the Compose file of its own
// documentation and an image of packages of this machine. Its own client uses it, before and after a
// restart and a rollout.
package apps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/lab/labtest"
)

// chosen are the applications of a plain run, on one host. PANDO_APPS=all runs all, and PANDO_APPS=NAME
// one, on one host and on three. PANDO_PREPARED is the folder of test/apps/prepare.
var chosen = []string{"nginx", "redis"}

func TestApplicationsWorkByTheirOwnComposeFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("it builds images and deploys them: make test-all runs it")
	}
	wanted := os.Getenv("PANDO_APPS")
	sizes := []int{1, 3}
	if wanted == "" {
		sizes = sizes[:1]
	}
	for _, hosts := range sizes {
		t.Run(fmt.Sprintf("%d-hosts", hosts), func(t *testing.T) {
			p := labtest.UpWith(t, labtest.Options{Hosts: hosts, One: true})
			for _, name := range slices.Sorted(maps.Keys(apps)) {
				if wanted == "all" || name == wanted || wanted == "" && slices.Contains(chosen, name) {
					t.Run(name, func(t *testing.T) { use(p.In(t), name, apps[name]) })
				}
			}
		})
	}
}

// prepared is the folder of test/apps/prepare.
func prepared() string { return os.Getenv("PANDO_PREPARED") }

// skip ends a test that lacks a program of this machine.
func skip(t testing.TB, a app) {
	t.Helper()
	for _, program := range a.needs {
		if !found(program) {
			t.Skipf("needs %s", program)
		}
	}
	if a.prepared == "" {
		return
	}
	if _, err := os.Stat(filepath.Join(prepared(), a.prepared)); err != nil || prepared() == "" {
		t.Skipf("needs %s: `test/apps/prepare FOLDER` fetches it, PANDO_PREPARED names the folder",
			a.prepared)
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

// use deploys an application, and uses it before and after a restart, a rollout, and the loss of its
// volumes.
func use(p *labtest.Pando, name string, a app) {
	p.Helper()
	skip(p, a)
	c := client{Pando: p, tenant: pando.Tenant(name), dir: filepath.Join(p.Dir, name)}
	c.build(a)
	c.deploy()
	key := pando.ServiceKey{Tenant: c.tenant, Name: pando.ServiceName(a.service)}
	service, err := p.API(p.Host()).Service(p.Context(), key)
	if err != nil {
		p.Fatal(err)
	}
	c.words = strings.NewReplacer("VIP", service.VIP, "DIR", c.dir, "PREPARED", prepared())
	c.stores(a)
	c.reads(a, "after the deploy")
	p.Pando("restart", "--wait", key.String())
	if a.forgets {
		c.stores(a)
	}
	c.reads(a, "after a restart")
	end := func() {}
	if a.port != "" {
		end = c.load(service.VIP + ":" + a.port)
	}
	edition := "services: {" + a.service + ": {environment: {EDITION: second}}}\n"
	if err := os.WriteFile(filepath.Join(c.dir, "compose.second.yaml"), []byte(edition), 0o644); err != nil {
		p.Fatal(err)
	}
	c.deploy("--env", "second")
	end()
	if a.forgets {
		c.stores(a)
	}
	c.reads(a, "after a rollout")
	if c.lose() {
		c.deploy("--env", "second")
		if a.forgets {
			c.stores(a)
		}
		c.reads(a, "after a restore of its volumes")
		c.remove()
	}
}

// client is a machine outside the cluster.
type client struct {
	*labtest.Pando
	tenant pando.Tenant
	dir    string
	words  *strings.Replacer
}

// build copies the folder of an application and builds its images.
func (c client) build(a app) {
	c.Helper()
	if err := os.CopyFS(c.dir, os.DirFS(filepath.Join("testdata", string(c.tenant)))); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			c.Fatal(err)
		}
	}
	for _, name := range append([]string{"image.yaml"}, a.extraImages...) {
		recipe := filepath.Join(c.dir, name)
		text, err := os.ReadFile(recipe)
		if err == nil {
			text = bytes.ReplaceAll(text, []byte("PREPARED"), []byte(prepared()))
			err = os.WriteFile(recipe, text, 0o644)
		}
		if err != nil {
			c.Fatal(err)
		}
		c.Pando.Pando("image", "build", recipe)
	}
}

func (c client) deploy(flags ...string) {
	c.Helper()
	c.Pando.Pando(append(append([]string{"deploy", "--wait"}, flags...), filepath.Join(c.dir, "compose.yaml"))...)
}

// remove removes the services of the application, each after those that need it.
func (c client) remove() {
	c.Helper()
	all, err := c.API(c.Host()).Services(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	for _, s := range all {
		if s.Service.Tenant == c.tenant {
			c.Pando.Pando("rm", s.Service.String())
		}
	}
	// The flows of a UDP service end when they are idle.
	c.AwaitFor(4*labtest.Patience, "no service of "+string(c.tenant), func() (string, bool) {
		left := []string{}
		all, err := c.API(c.Host()).Services(c.Context())
		for _, s := range all {
			if s.Service.Tenant == c.tenant {
				left = append(left, s.Service.String())
			}
		}
		return fmt.Sprint(left, err), err == nil && len(left) == 0
	})
}

// lose removes the application, backs up the volumes, deletes them and restores them. It returns
// false if the application has no volume.
func (c client) lose() bool {
	c.Helper()
	c.remove()
	gone := map[[2]string]bool{}
	var all []pando.KeptVolume
	c.PandoJSON(&all, "volume", "ls")
	for _, v := range all {
		if v.Service.Tenant == c.tenant {
			gone[[2]string{v.Service.String(), v.Name}] = true
		}
	}
	if len(gone) == 0 {
		return false
	}
	file := filepath.Join(c.dir, "backup")
	c.Pando.Pando("backup", "--volumes", file)
	for v := range gone {
		c.Pando.Pando("volume", "rm", v[0], v[1])
	}
	for _, host := range c.Hosts {
		c.Must(host, c.Bin, "restore", "--volumes", file)
	}
	return true
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
