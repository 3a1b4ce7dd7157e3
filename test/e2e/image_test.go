package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// imaged is the spec of a service with an image in a file of the test's folder.
func imaged(name string, lines ...string) string {
	return "name: " + name + "\nimage: docker-archive:image.tar\n" +
		"ports: [\"80:8080\", \"7:7007/udp\"]\n" +
		strings.Join(lines, "\n") + "\n"
}

func TestAnImageIsServedReplicatedAndBroughtToOtherHosts(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	config := v1.Config{Entrypoint: []string{"/app/echo"}, Env: []string{"TEXT=of the image"},
		WorkingDir: "/data", User: "web"}
	layer := map[string][]byte{"/etc/passwd": []byte("web:x:1234:1234::/:/bin/sh\n")}
	p.SaveImage("image.tar", p.Image(runtime.GOARCH, config, p.EchoLayer(), layer))
	homes := map[string]*labtest.Service{}
	for _, name := range []string{"web", "shop"} {
		s := p.Deploy(imaged(name, "scale: {min: 1, max: 4}"))
		homes[homeOf(t, s.Status())] = s
	}
	if len(homes) != 2 {
		t.Fatalf("two services have the homes %v", homes)
	}
	for home, s := range homes { // the second host has the layers of the first
		if got := s.Get(labtest.Client, "/"); !strings.HasSuffix(got, " of the image") {
			t.Errorf("the service on %s says %q", home, got)
		}
		p.Pando("scale", s.Name, "3", "--wait")
		s.AwaitInstances(3)
		has(t, s.Why(), "is sha256:", "which gave entrypoint, environment.TEXT, working_dir, user")
	}
	web := homes[p.Host()]
	if got := web.Get(labtest.Client, "/self?path=/v1/self/ready"); strings.Contains(got, "no such") {
		t.Errorf("the instance does not reach its own API: %s", got)
	}
	t.Run("the spec wins", func(t *testing.T) { theSpecWins(p.In(t), web.In(p.In(t))) })
	t.Run("errors", func(t *testing.T) { imagesThatFail(p.In(t), web.In(p.In(t)), config) })
}

// theSpecWins deploys a variable of the spec over that of the image, and no change again.
func theSpecWins(p *labtest.Pando, web *labtest.Service) {
	spec := imaged(web.Name, "scale: {min: 1, max: 4}", "environment: {TEXT: of the spec}")
	web.Update(spec)
	if got := web.Get(labtest.Client, "/"); !strings.HasSuffix(got, " of the spec") {
		p.Errorf("the service says %q", got)
	}
	before := web.Status().Latest
	web.Update(spec)
	if after := web.Status().Latest; after != before {
		p.Errorf("the same spec and image made revision %d of %d", after, before)
	}
}

// imagesThatFail deploys images that cannot run. The old revision still serves after each.
func imagesThatFail(p *labtest.Pando, web *labtest.Service, config v1.Config) {
	good := filepath.Join(p.Dir, "image.tar")
	if err := os.Rename(good, good+".good"); err != nil {
		p.Fatal(err)
	}
	fails := func(spec string, wants ...string) {
		p.Helper()
		out := p.Run(p.Host(), p.Bin, "deploy", "--wait", p.Write(web.Name+".yaml", spec))
		if out.Code == 0 {
			p.Errorf("it was deployed:\n%s", out.Text)
		}
		has(p, out.Text, wants...)
		if got := web.Get(labtest.Client, "/"); !strings.HasPrefix(got, "web-") &&
			!strings.HasPrefix(got, "shop-") {
			p.Errorf("after it the service says %q", got)
		}
	}
	spec := imaged(web.Name, "environment: {TEXT: never}")
	fails(spec, "image.tar", "not found", "`docker save`")
	p.Write("image.tar", "this is no archive")
	fails(spec, "no file of `docker save`")
	p.SaveImage("image.tar", p.Image("s390x", config, p.EchoLayer()))
	fails(spec, "built for linux/s390x", "this host is linux/"+runtime.GOARCH)
	config.Entrypoint, config.User = []string{"/app/other"}, ""
	p.SaveImage("image.tar", p.Image(runtime.GOARCH, config, p.EchoLayer()))
	fails(spec, "no program /app/other")
	if st := web.Status(); st.Phase != pando.ServiceServing {
		p.Errorf("the service is %s: %s", st.Phase, st.Reason)
	}
}

// TestTheExampleOfAnImageServes builds the image of the example, of this machine's nginx with its
// libraries, and deploys it. Then it looks after the image.
func TestTheExampleOfAnImageServes(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/sbin/nginx"); err != nil {
		t.Skip("this machine has no nginx to make an image of")
	}
	p := labtest.Up(t)
	dir := filepath.Join(p.Dir, "example")
	if err := os.CopyFS(dir, os.DirFS("../../examples/image")); err != nil {
		t.Fatal(err)
	}
	p.Pando("image", "build", filepath.Join(dir, "image.yaml"))
	web := p.DeployFile(filepath.Join(dir, "pando.yaml"))
	if got := web.Get(labtest.Client, "/"); got != "hello from an image" {
		t.Errorf("nginx says %q", got)
	}
	name := "docker-archive:" + filepath.Join(dir, "image.tar")
	has(t, p.Pando("image", "ls"), "yes", " image ", name)
	has(t, p.Pando("image", "show", name), "/usr/sbin/nginx -e stderr", "www", "SIGQUIT", "8080/tcp")
	has(t, p.PandoFails(5, "image", "rm", name), "service image uses image", "`pando rm image`")
	p.PandoFails(4, "image", "show", "no-such-image")
	p.Pando("rm", "image", "--wait")
	p.Await("the last sandbox of the image to be gone", func() (string, bool) {
		out := p.Run(p.Host(), p.Bin, "image", "rm", name)
		return out.Text, out.Code == 0
	})
	p.Pando("image", "pull", name)
	has(t, p.Pando("image", "ls"), "no ", name) // the agent unpacks it for the first instance
}
