package e2e

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// crun starts the program of an image: it serves at the VIP, scales, rolls, explains its end and
// takes commands, as an instance that Pando itself starts.
func TestAnImageIsServedByCrun(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath(pando.RuntimeCrun); err != nil {
		t.Skip("needs crun")
	}
	p := labtest.Up(t)
	config := v1.Config{Entrypoint: []string{"/app/echo"}, Env: []string{"TEXT=of the image"},
		WorkingDir: "/data", User: "web"}
	layer := map[string][]byte{"/etc/passwd": []byte("web:x:1234:1234::/:/bin/sh\n")}
	p.SaveImage("image.tar", p.Image(runtime.GOARCH, config, p.EchoLayer(), layer))
	spec := imaged("web", "runtime: crun", "scale: {min: 1, max: 4}")
	web := p.Deploy(spec)
	if got := web.Get(labtest.Client, "/"); !strings.HasSuffix(got, " of the image") {
		t.Errorf("the service answers %q", got)
	}
	if got := web.Get(labtest.Client, "/self?path=/v1/self/ready"); strings.Contains(got, "no such") {
		t.Errorf("the instance does not reach its own API: %s", got)
	}
	p.Pando("scale", "web", "3", "--wait")
	web.AwaitInstances(3)
	has(t, p.Pando("exec", "web", "--", "/app/echo", "lookup", "web.pando",
		pando.Gateway4.String()), web.VIP)
	web.Update(spec + "environment: {TEXT: of the spec}\n")
	if got := web.Get(labtest.Client, "/"); !strings.HasSuffix(got, " of the spec") {
		t.Errorf("after a rollout the service answers %q", got)
	}
	web.Kill(web.AwaitInstances(3).Instances[0].ID)
	p.Await("the end is explained", func() (string, bool) {
		why := web.Why()
		return why, strings.Contains(why, "exited with 9") && strings.Contains(why, "hello from web-")
	})
	web.Await("three instances again",
		func(st pando.ServiceStatus) bool { return st.InRotation == 3 })
	has(t, p.PandoFails(11, "snapshot", "web"), "no image")
	out := p.PandoFails(3, "deploy", p.Write("bad.yaml", "name: bad\ncommand: [./x]\nruntime: crun\n"))
	has(t, out, "bad.yaml:3:1: runtime: crun runs images")
}
