package contract

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/image"
	"pando.run/pando/driver/sandbox/process"
	"pando.run/pando/spec"
)

// container is how both runtimes start the image.
type container struct {
	user   string
	words  []string
	init   bool
	stop   bool   // once it says "waits"
	volume string // a name for /keep; "": that of the case
	kernel bool   // with further groups, bounds of processes and settings of the kernel
	large  bool   // with the memory and the processes that suites need
}

// limits returns the bounds of memory and of processes.
func (c container) limits() (memoryBytes int64, pids int64) {
	if c.large {
		return 1 << 30, 1000
	}
	return 256 << 20, 200
}

// ended is the end of a container: its output and its code, 128 and the signal for one.
type ended struct {
	lines []string
	code  int
}

// podman runs containers of an image in a store of the test's own.
type podman struct {
	t      *testing.T
	global []string
	image  string
}

func newPodman(t *testing.T, image string) podman {
	t.Helper()
	for _, name := range []string{"podman", "runc", "catatonit"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: apt-get install podman runc catatonit", name)
		}
	}
	dir, err := os.MkdirTemp("", "podman-") // Podman takes 50 characters at most
	if err != nil {
		t.Fatal(err)
	}
	p := podman{t: t, global: []string{"--root", filepath.Join(dir, "root"), "--runroot",
		filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"), "--runtime", "runc",
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--network-config-dir",
		filepath.Join(dir, "networks")}, image: image}
	t.Cleanup(func() {
		for _, words := range [][]string{{"rm", "-afv"}, {"volume", "rm", "-af"}} {
			if out, err := p.command(words...).CombinedOutput(); err != nil {
				t.Errorf("podman %v: %v\n%s", words, err, out)
			}
		}
		_ = unix.Unmount(filepath.Join(dir, "root", "overlay"), unix.MNT_DETACH)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if out, err := p.command("pull", "-q", p.image).CombinedOutput(); err != nil {
		t.Fatalf("podman pull: %v\n%s", err, out)
	} else {
		p.image = strings.TrimSpace(string(out))
	}
	return p
}

func (p podman) command(words ...string) *exec.Cmd {
	return exec.Command("podman", append(p.global[:len(p.global):len(p.global)], words...)...)
}

func (p podman) run(name string, c container) ended {
	p.t.Helper()
	volume := c.volume
	if volume == "" {
		volume = name
	}
	memory, pids := c.limits()
	words := []string{"create", "--name", name, "--memory", strconv.FormatInt(memory, 10),
		"--pids-limit", strconv.FormatInt(pids, 10), "--ulimit", "nofile=1024:" + mostFiles(p.t), "--ulimit",
		"nproc=1024:1024", "-v", volume + ":/keep", "--stop-timeout", "1"}
	if c.user != "" {
		words = append(words, "--user", c.user)
	}
	if c.init {
		words = append(words, "--init")
	}
	if c.kernel {
		words = append(words, "--group-add", "extra", "--group-add", "70001", "--ulimit", "core=0:0",
			"--ulimit", "stack=4194304:8388608", "--sysctl", "net.core.somaxconn=77", "--sysctl",
			"kernel.shmmax=65536", "--sysctl", "fs.mqueue.msg_max=7", "--umask", "0027", "--cpuset-cpus",
			"0", "--dns-search", "corp.example", "--dns-opt", "ndots:2")
	}
	if out, err := p.command(append(append(words, p.image), c.words...)...).CombinedOutput(); err != nil {
		p.t.Fatalf("podman create %s: %v\n%s", name, err, out)
	}
	if out, err := p.command("start", name).CombinedOutput(); err != nil {
		p.t.Fatalf("podman start %s: %v\n%s", name, err, out)
	}
	if c.stop {
		p.awaitLine(name, "waits")
		if out, err := p.command("stop", name).CombinedOutput(); err != nil {
			p.t.Fatalf("podman stop %s: %v\n%s", name, err, out)
		}
	}
	out, err := p.command("wait", name).Output()
	if err != nil {
		p.t.Fatalf("podman wait %s: %v", name, err)
	}
	code, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return ended{p.lines(name), code}
}

// mostFiles returns how many files a process may open at most.
func mostFiles(t *testing.T) string {
	t.Helper()
	var of unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &of); err != nil {
		t.Fatal(err)
	}
	return strconv.FormatUint(of.Max, 10)
}

func (p podman) lines(name string) []string {
	out, err := p.command("logs", name).CombinedOutput()
	if err != nil {
		p.t.Fatalf("podman logs %s: %v", name, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func (p podman) awaitLine(name, want string) {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if lines := p.lines(name); lines[len(lines)-1] == want {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not say %q", name, want)
		}
	}
}

// inPando runs instances of an image by the drivers of an agent.
type inPando struct {
	t      *testing.T
	driver *process.Driver
	image  pando.Image
	config pando.ImageConfig
}

func newPando(t *testing.T, reference string) inPando {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := image.Open(image.Config{Dir: filepath.Join(dir, "images"), Host: "contract",
		Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	i, c, err := store.Resolve(t.Context(), "", pando.Image{Reference: reference})
	if err == nil {
		err = store.Pull(t.Context(), i, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := pando.InstanceRange(1001)
	d, err := process.New(process.Config{Cgroups: groups, Groups: cgroup.Root,
		Host: pando.HostName("contract" + strconv.Itoa(os.Getpid())), RunDir: filepath.Join(dir, "run"),
		LogDir: filepath.Join(dir, "log"), Self: []string{"/proc/self/exe"}, Hidden: []string{dir},
		Prefix4: v4, Prefix6: v6, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		Volumes: filepath.Join(dir, "volumes"), Users: filepath.Join(dir, "users"), Images: store,
		Layers: store.LayersDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Purge(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return inPando{t, d, i, c}
}

func (p inPando) run(name string, c container) ended {
	p.t.Helper()
	volume := c.volume
	if volume == "" {
		volume = name
	}
	memory, pids := c.limits()
	s := pando.Spec{Name: pando.ServiceName(volume), User: c.user, Init: c.init, StopSeconds: 1,
		Volumes:   []pando.Volume{{Name: "keep", Path: "/keep"}},
		Resources: pando.Resources{MemoryBytes: memory, PIDs: pids}}
	if c.kernel {
		s.GroupAdd = []string{"extra", "70001"}
		s.Ulimits = map[string]string{"core": "0:0", "stack": "4194304:8388608"}
		s.Sysctls = map[string]string{"net.core.somaxconn": "77", "kernel.shmmax": "65536",
			"fs.mqueue.msg_max": "7"}
		s.Umask, s.Resources.CPUSet = "0027", "0"
		s.DNSSearch, s.DNSOptions = []string{"corp.example"}, []string{"ndots:2"}
	}
	if c.large { // as Podman gets; without them, a program has those of the host's init
		s.Ulimits = map[string]string{"nofile": "1024:" + mostFiles(p.t), "nproc": "1024:1024"}
	}
	if len(c.words) > 0 {
		s.Entrypoint, s.Command = p.config.Entrypoint, c.words
	}
	s = spec.FromImage(s, p.image, p.config).WithDefaults()
	b, err := p.driver.Start(p.t.Context(), pando.SandboxSpec{Spec: s, Instance: pando.Instance{
		ID: pando.InstanceID(name), Service: s.Key(), Ordinal: 1, Role: pando.RoleFirst}})
	if err != nil {
		p.t.Fatalf("start %s: %v", name, err)
	}
	if c.stop {
		for deadline := time.Now().Add(20 * time.Second); ; {
			if l := b.LastLines(1); len(l) == 1 && l[0] == "waits" {
				break
			}
			if time.Now().After(deadline) {
				p.t.Fatalf("%s does not say that it waits", name)
			}
		}
		if err := b.Stop(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
	for e := range b.Events() {
		if e.Kind != pando.SandboxExited {
			continue
		}
		code := e.Exit.Code
		if sig := unix.SignalNum(e.Exit.Signal); sig != 0 {
			code = 128 + int(sig)
		}
		out := ended{b.LastLines(5000), code}
		if err := b.Remove(p.t.Context()); err != nil {
			p.t.Error(err)
		}
		return out
	}
	p.t.Fatalf("%s ended without an exit", name)
	return ended{}
}
