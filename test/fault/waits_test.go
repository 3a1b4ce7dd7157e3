package fault

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// hungSpec is a stateful service whose programs and hook wait as long as a file exists.
const hungSpec = `name: ledger
kind: stateful
command: [sh, -c, 'while test -e /gate/hang; do sleep 0.1; done; exec ./echo']
scale: {min: 3}
place: {spread: host}
ports: ["80:8080"]
volumes: ["data:/data"]
folders: ["GATE:/gate"]
health: {ready: tcp 8080, ready_within: 2s}
drain_max: 1s
hooks:
  bootstrap: [./echo]
  recover: [sh, -c, 'while test -e /gate/hang; do sleep 0.1; done; echo a-history:1']
`

// hook returns the command of a stateful service that runs before its program, and never ends.
func (p servers3) hook() counterpart {
	p.Helper()
	gate := filepath.Join(p.Dir, "gate")
	if err := os.Mkdir(gate, 0o755); err != nil {
		p.Fatal(err)
	}
	ledger := p.Deploy(strings.ReplaceAll(hungSpec, "GATE", gate))
	ledger.AwaitInstances(3)
	hang := filepath.Join(gate, "hang")
	return counterpart{"a hook", p.Host(), "its hook recover runs", func() {
		if err := os.WriteFile(hang, nil, 0o644); err != nil {
			p.Fatal(err)
		}
		for _, i := range ledger.Status().Instances {
			ledger.Kill(i.ID)
		}
		ledger.Await("the hook to run in place of all programs", func(st pando.ServiceStatus) bool {
			return len(st.Instances) > 0 && !slices.ContainsFunc(st.Instances,
				func(i pando.InstanceStatus) bool { return i.Phase != pando.PhasePlaced })
		})
	}, func() {
		if err := os.Remove(hang); err != nil {
			p.Fatal(err)
		}
		ledger.AwaitInstances(3)
	}, "ledger"}
}

// registryAt is the address of the lab's registry, which is on the client.
const registryAt = "10.126.0.254:5000"

// registry returns a registry that is stopped when a host fetches an image. The image is known by then.
func (p servers3) registry() counterpart {
	p.Helper()
	p.WithEcho()
	p.serveImage()
	for _, h := range p.Hosts {
		p.Must(h, "mount", "-t", "overlay", "overlay", "-o",
			"lowerdir="+filepath.Join(p.Dir, "etc")+":/etc", "/etc")
	}
	r := p.Start(labtest.Client, p.WithEcho(), "registry", filepath.Join(p.Dir, "images"))
	r.AwaitText("serving")
	p.Deploy("name: pulled\nimage: " + registryAt + "/echo:latest\nscale: {min: 0, max: 1}\n" +
		"ports: [\"80:8080\"]\n")
	signal := func(name string) {
		p.Must(labtest.Client, "pkill", "-"+name, "-f", "^"+p.WithEcho()+" registry")
	}
	return counterpart{"a registry", p.Host(), "registry " + registryAt, func() {
		signal("STOP")
		p.Pando("scale", "pulled", "1")
	}, func() { signal("CONT") }, "pulled"}
}

// serveImage writes an image as the lab's registry serves it, and the hosts' list of registries.
func (p servers3) serveImage() {
	p.Helper()
	must := func(err error) {
		p.Helper()
		if err != nil {
			p.Fatal(err)
		}
	}
	img := p.Image(runtime.GOARCH, v1.Config{Entrypoint: []string{"/app/echo"}}, p.EchoLayer())
	manifest, err := img.RawManifest()
	must(err)
	name, err := img.Digest()
	must(err)
	config, err := img.RawConfigFile()
	must(err)
	all := map[string][]byte{"images/v2/echo/manifests/latest": manifest,
		"images/v2/echo/manifests/" + name.String(): manifest,
		"etc/pando/registries":                      []byte(registryAt + " http\n")}
	m, err := img.Manifest()
	must(err)
	all["images/v2/echo/blobs/"+m.Config.Digest.String()] = config
	layers, err := img.Layers()
	must(err)
	for n, l := range layers {
		r, err := l.Compressed()
		must(err)
		all["images/v2/echo/blobs/"+m.Layers[n].Digest.String()], err = io.ReadAll(r)
		must(err)
	}
	for path, text := range all {
		at := filepath.Join(p.Dir, path)
		must(os.MkdirAll(filepath.Dir(at), 0o755))
		must(os.WriteFile(at, text, 0o644))
	}
}

// Commands with an open stream name the server that is stopped behind it. A followed log names an agent
// that is stopped behind the server.
func TestOpenStreamsNameWhoIsSilent(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	p.held.Stop()
	lead := p.leader(p.Host())
	from, far := p.others(lead)[0], p.others(lead)[1]
	pid := func(host, role string) string {
		return strings.TrimSpace(p.Must(host, "cat", "/run/pando/"+role+".pid"))
	}
	stopped := func(host, role, want string, commands ...[]string) {
		t.Helper()
		var all []*labtest.Process
		for _, c := range commands {
			all = append(all, p.Start(from, append([]string{p.Bin}, c...)...))
		}
		p.Await("the streams to be open", func() (string, bool) {
			for _, r := range all {
				if r.Text() == "" {
					return fmt.Sprint(r), false
				}
			}
			return "", true
		})
		p.Must(host, "kill", "-STOP", pid(host, role))
		for _, r := range all {
			r.AwaitText(want)
		}
		p.Must(host, "kill", "-CONT", pid(host, role))
		for _, r := range all {
			r.Stop()
		}
	}
	stopped(from, "server", "a sign of life of the server", []string{"watch"},
		[]string{"ps", "--watch"}, []string{"logs", "-f", "web"},
		[]string{"exec", "web", "--", "sh", "-c", "echo begun; sleep 60"})
	stopped(far, "agent", "its log cannot be read now", []string{"logs", "-f", "web"})
}
