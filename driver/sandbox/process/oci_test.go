package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/cgroup"
)

// withCrun starts a program of an image by crun.
func withCrun(
	t *testing.T, d *Driver, config string, change func(*pando.Spec), script string,
) (pando.Sandbox, error) {
	t.Helper()
	if _, err := exec.LookPath(pando.RuntimeCrun); err != nil {
		t.Skip("needs crun")
	}
	spec := pando.Spec{Name: "web", WorkingDir: "/srv/new", StopSeconds: 0.3,
		Command: []string{"/bin/sh", "-c", script}, Runtime: pando.RuntimeCrun,
		Image: pando.Image{Reference: "web", Digest: "sha256:1"},
		Tmpfs: []pando.Tmpfs{{Path: "/scratch"}}, ExtraHosts: map[string]string{"db.lan": "192.0.2.9"}}
	change(&spec)
	spec = spec.WithDefaults()
	return d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key()}, Spec: spec, VIP4: vip,
		Secrets: map[string][]byte{"key": []byte("hush")},
		Configs: []pando.ConfigFile{
			{Name: "a.conf", Content: []byte(config), Mode: 0o444, Target: "/etc/shop/a.conf",
				Check: []string{"/bin/sh", "-c", "read word <$0; test $word = one || exit 7", "{}"}},
		},
	})
}

const waits = "trap 'exit 5' TERM; trap 'echo $(cat /etc/shop/a.conf)' HUP; echo ready; " +
	"while :; do sleep 0.05; done"

// crun starts a program of an image with its own mounts, capabilities and filter, in the network,
// the cgroups and the users of the sandbox. Commands, secrets, configs and the end are as ever.
func TestCrunStartsAProgramOfAnImage(t *testing.T) {
	for user, id := range map[string]string{"": "uid=0 gid=0 groups=0", "web": "uid=101 gid=102"} {
		t.Run("user "+user, func(t *testing.T) {
			d := newImageDriver(t, 1)
			copyProgram(t, filepath.Join(d.Layers, "low"), "/usr/bin/unshare")
			b, err := withCrun(t, d, "one\n", func(s *pando.Spec) { s.User = user }, waits)
			if err != nil {
				t.Fatal(err)
			}
			awaitLast(t, b, "ready")
			for script, want := range map[string]string{
				"id":                                    id,
				"pwd; ls -a /data /srv":                 "/srv/new\n/data:\n.\n..\nhigh\n\n/srv:\n.\n..\nnew",
				"cat /run/secrets/key /etc/shop/a.conf": "hushone",
				"test -S /run/pando/self.sock && echo a socket":           "a socket",
				"unshare -n true 2>&1":                                    "unshare: unshare failed: Operation not",
				"grep db.lan /etc/hosts":                                  "192.0.2.9 db.lan",
				"touch /scratch/x /tmp/x && ls /scratch":                  "x",
				"grep NoNewPrivs /proc/self/status":                       "NoNewPrivs:\t1",
				"grep Seccomp: /proc/self/status":                         "Seccomp:\t2",
				"ls /sys/class/net":                                       "eth0\nlo",
				"ls /run/oci 2>&1":                                        "ls: cannot access",
				"cat /proc/1/comm":                                        "sh",
				"echo 1 2>/dev/null >/proc/sysrq-trigger || echo refused": "refused",
			} {
				got := inside(t, b, script)
				if !strings.HasPrefix(got, want) {
					t.Errorf("%s: %q, want %q", script, got, want)
				}
			}
			if got := inside(t, b, "grep CapEff /proc/self/status"); user == "web" &&
				!strings.HasSuffix(got, "0000000000000000") {
				t.Errorf("the program has capabilities: %s", got)
			}
			if own := inside(t, b, "grep -v :/$ /proc/self/cgroup"); own != "" {
				t.Errorf("it sees cgroups around its own: %s", own)
			}
			if all, err := b.(*sandbox).slot.cgroup.Processes(); err != nil || len(all) < 1 {
				t.Errorf("the cgroup of the instance has the processes %v (%v)", all, err)
			}
			changed, err := b.Reconfigure(t.Context(), configChange("two"))
			if !changed || err != nil {
				t.Fatalf("a new config: %v, %v", changed, err)
			}
			awaitLast(t, b, "two")
			if code, _, err := b.Exec(t.Context(), []string{"/bin/sh", "-c", "exit 9"}); code != 9 ||
				err != nil {
				t.Errorf("a command ended with %d, %v", code, err)
			}
			if err := b.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			for e := range b.Events() {
				if e.Kind == pando.SandboxExited && e.Exit.Code != 5 {
					t.Errorf("its exit is %+v, want 5", e.Exit)
				}
			}
		})
	}
}

// crun looks at the version of the cgroups of the machine.
func TestCrunStartsAProgramOnCgroupsV2(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	const inV2 = "PROCESS_TEST_V2"
	if os.Getenv(inV2) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inV2+"=own")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET,
			Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
		runtime.LockOSThread() // Pdeathsig refers to the death of this thread
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	if err := unix.Mount("cgroup2", cgroup.Root, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	d := newImageDriver(t, 1)
	b, err := withCrun(t, d, "one\n", func(s *pando.Spec) { s.User = "web" }, waits)
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, "ready")
	for script, want := range map[string]string{
		"id": "uid=101 gid=102", "cat /proc/self/cgroup": "0::/pando/",
		"cat /run/secrets/key /etc/shop/a.conf": "hushone",
	} {
		if got := inside(t, b, script); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if all, err := b.(*sandbox).slot.cgroup.Processes(); err != nil || len(all) < 1 {
		t.Errorf("the cgroup of the instance has the processes %v (%v)", all, err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A check of a config runs by crun before the program, and a command that hangs ends with its
// caller.
func TestChecksAndHangingCommandsOfCrun(t *testing.T) {
	d := newImageDriver(t, 2)
	b, err := withCrun(t, d, "one\n", func(s *pando.Spec) { s.ReadOnly = true }, waits)
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, "ready")
	got := inside(t, b, "touch /etc/new 2>&1; touch /tmp/new 2>&1; touch /scratch/new && echo kept")
	if !strings.Contains(got, "touch '/etc/new': Read-only") || !strings.HasSuffix(got, "kept") {
		t.Errorf("with read_only: %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300e6)
	defer cancel()
	if _, _, err := b.Exec(ctx, []string{"/bin/sleep", "61"}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("a command that hangs: %v", err)
	}
	for end := time.Now().Add(patience); ; {
		pids, err := b.(*sandbox).slot.cgroup.Processes()
		if err == nil && !slices.ContainsFunc(pids, func(pid int) bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return strings.Contains(string(text), "sleep\x0061")
		}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the command runs on (%v)", err)
		}
	}
	_, err = withCrun(t, d, "bad\n", func(*pando.Spec) {}, waits)
	var failed *pando.CheckFailed
	if !errors.As(err, &failed) || failed.Code != 7 || failed.Config != "a.conf" {
		t.Errorf("with a bad config: %v", err)
	}
}

// A runtime that is missing, or that cannot start the program, is an error with its cause.
func TestCrunThatCannotStartNamesItsCause(t *testing.T) {
	d := newImageDriver(t, 2)
	_, err := withCrun(t, d, "one\n", func(s *pando.Spec) { s.Command = []string{"/bin/none"} }, "")
	if err == nil || !strings.Contains(err.Error(), "crun") ||
		!strings.Contains(err.Error(), "/bin/none") {
		t.Errorf("a missing program: %v", err)
	}
	_, err = withCrun(t, d, "one\n", func(s *pando.Spec) { s.Image = pando.Image{} }, waits)
	if !errors.Is(err, pando.ErrUnsupported) || !strings.Contains(err.Error(), "runs images") {
		t.Errorf("without an image: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	spec := pando.Spec{Runtime: pando.RuntimeCrun}
	if _, err := runtimeOf(spec); !errors.Is(err, pando.ErrUnsupported) ||
		!strings.Contains(err.Error(), "apt-get install crun") {
		t.Errorf("without crun: %v", err)
	}
}
