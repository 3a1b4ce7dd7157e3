package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/cgroup"
)

// oneImage is a store with one image, for every digest.
type oneImage struct {
	pando.Images
	root pando.ImageRoot
	err  error
}

func (i oneImage) Root(_, user string) (pando.ImageRoot, error) {
	if user == "web" {
		i.root.UID, i.root.GID, i.root.Groups = 101, 102, []uint32{7}
	}
	return i.root, i.err
}

// libraries finds the files that a program of this machine needs.
var libraries = regexp.MustCompile(`(/\S+)\s\(0x`)

// copyProgram copies a program and its libraries into a layer.
func copyProgram(t *testing.T, layer string, names ...string) {
	t.Helper()
	for _, name := range names {
		out, err := exec.Command("ldd", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		files := []string{name}
		for _, m := range libraries.FindAllStringSubmatch(string(out), -1) {
			files = append(files, m[1])
		}
		for _, f := range files {
			to := filepath.Join(layer, f)
			b, err := os.ReadFile(f)
			if err == nil {
				err = os.MkdirAll(filepath.Dir(to), 0o755)
			}
			if err == nil {
				err = os.WriteFile(to, b, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// newImageDriver returns a driver with an image of two layers: a shell and tools, and above them a
// folder in which /data/low is hidden.
func newImageDriver(t *testing.T, pool int) *Driver {
	t.Helper()
	return newImageDriverIn(t, pool, cgroup.Root)
}

// newImageDriverIn is newImageDriver with cgroups at a root.
func newImageDriverIn(t *testing.T, pool int, root string) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	layers := filepath.Join(dir, "layers")
	copyProgram(t, filepath.Join(layers, "low"), "/bin/sh", "/usr/bin/id", "/bin/ls", "/bin/cat",
		"/bin/touch", "/bin/grep", "/bin/sleep", "/bin/ln", "/bin/cp", "/usr/bin/stat")
	for name, text := range map[string]string{"low/data/low": "low", "high/data/high": "high"} {
		path := filepath.Join(layers, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(layers, "high/data/low"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	v4, v6 := pando.InstanceRange(1000)
	groups, err := cgroup.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{
		Cgroups: groups, Groups: root, Host: testHost, RunDir: filepath.Join(dir, "run"),
		LogDir: filepath.Join(dir, "log"), Self: []string{"/proc/self/exe"}, Hidden: []string{dir},
		Prefix4: v4, Prefix6: v6, Pool: pool, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		Volumes: filepath.Join(dir, "volumes"), Users: filepath.Join(dir, "users"),
		Images: oneImage{root: pando.ImageRoot{Layers: []string{"high", "low"}}}, Layers: layers,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Purge(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return d
}

// withImage is the change of a spec that gives it an image.
func withImage(s *pando.Spec) {
	s.Image = pando.Image{Reference: "web", Digest: "sha256:0"}
}

func TestAProgramSeesItsImageAndNothingOfTheHost(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, withImage, "/bin/sh", "-c", `echo root: $(ls /); echo data: $(ls /data)
		cat /data/high; echo; touch /data/mine && echo wrote; ls /var/lib /home 2>&1
		echo pando: $(cd /run/pando; ls -d notify.sock self.sock)
		grep nameserver /etc/resolv.conf; ls /proc | grep -c "^[0-9]"
		echo null > /dev/null && echo device; grep -E "NoNewPrivs|CapEff" /proc/self/status
		cd /proc/1/root`)
	exited(t, b)
	out := strings.Join(b.LastLines(40), "\n")
	for _, want := range []string{"data: high\n", "high\n", "\nwrote\n",
		"pando: notify.sock self.sock",
		"nameserver " + pando.Gateway4.String(), "\ndevice\n", "NoNewPrivs:\t1"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	for _, no := range []string{"root: home", " boot", " srv", "low\n"} {
		if strings.Contains(out, no) {
			t.Errorf("%q is in:\n%s", no, out)
		}
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(d.Layers, "high/data/mine")); err == nil {
		t.Error("the instance wrote into a layer of its image")
	}
}

// A file has one identity: the two names of a hard link are one file, in the folder's file system,
// also once it was written to.
func TestAFileOfAnImageHasOneIdentity(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, withImage, "/bin/sh", "-c", `cd /data; stat -c %i high; ln high two; cp high two 2>&1
		cat high; echo; stat -c %i high; stat -c %i two; stat -c %d . high two`)
	exited(t, b)
	out := b.LastLines(20)
	if len(out) != 8 || !strings.Contains(out[1], "same file") || out[2] != "high" ||
		out[3] != out[0] || out[4] != out[0] || out[5] != out[6] || out[5] != out[7] {
		t.Errorf("inode, cp, content, inodes, devices:\n%s", strings.Join(out, "\n"))
	}
}

func TestInstancesOfAnImageShareNoFiles(t *testing.T) {
	d := newImageDriver(t, 2)
	a := run(t, d, withImage, "/bin/sh", "-c", "touch /data/of-a && ls /data")
	exited(t, a)
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-2", Service: pando.DefaultService("web")},
		Spec: pando.Spec{Name: "web", Command: []string{"ls", "/data"},
			Image: pando.Image{Digest: "sha256:0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	exited(t, b)
	if got := strings.Join(a.LastLines(9), " "); got != "high of-a" {
		t.Errorf("the first sees %q", got)
	}
	if got := strings.Join(b.LastLines(9), " "); got != "high" {
		t.Errorf("the second sees %q", got)
	}
}

func TestTheUserOfAnImageIsTheImages(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, func(s *pando.Spec) {
		withImage(s)
		s.User, s.WorkingDir = "web", "/made/here"
	}, "/bin/sh", "-c", "id -u; id -g; id -G; pwd; touch x && echo wrote")
	exited(t, b)
	if got := strings.Join(b.LastLines(9), " "); got != "101 102 102 7 /made/here wrote" {
		t.Errorf("it runs as %q", got)
	}
}

func TestACommandRunsBesideAProgramOfAnImage(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, withImage, "/bin/sleep", "60")
	code, out, err := b.Exec(t.Context(), []string{"/bin/cat", "/data/high"})
	if code != 0 || string(out) != "high" || err != nil {
		t.Errorf("exec in an image: %d %q %v", code, out, err)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatAnImageLacksIsNamed(t *testing.T) {
	d := newImageDriver(t, 0)
	start := func(d *Driver, command string) error {
		_, err := d.Start(t.Context(), pando.SandboxSpec{
			Instance: pando.Instance{ID: "web-1", Service: pando.DefaultService("web")},
			Spec: pando.Spec{Name: "web", Command: []string{command},
				Image: pando.Image{Digest: "sha256:0"}},
		})
		return err
	}
	if err := start(d, "/no/such"); err == nil ||
		!strings.Contains(err.Error(), "no program /no/such") {
		t.Errorf("a missing program: %v", err)
	}
	d.Images = oneImage{root: pando.ImageRoot{Layers: []string{"gone"}}}
	if err := start(d, "/bin/sh"); err == nil || !strings.Contains(err.Error(), "layers") {
		t.Errorf("a missing layer: %v", err)
	}
	d.Images = oneImage{err: pando.ErrNotReady}
	if err := start(d, "/bin/sh"); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("an image that is not here: %v", err)
	}
	d.Images = nil
	if err := start(d, "/bin/sh"); !errors.Is(err, pando.ErrUnsupported) {
		t.Errorf("a host without images: %v", err)
	}
}

func TestASlotOfAnOlderBuildRunsNoImage(t *testing.T) {
	d := newImageDriver(t, 0)
	old, err := d.pool.make()
	if err != nil {
		t.Fatal(err)
	}
	old.Layers = false
	d.pool.mu.Lock()
	d.pool.ready = append(d.pool.ready, old)
	d.pool.mu.Unlock()
	b := run(t, d, withImage, "/bin/ls", "/data")
	exited(t, b)
	if got := strings.Join(b.LastLines(9), " "); got != "high" {
		t.Errorf("it sees %q", got)
	}
}
