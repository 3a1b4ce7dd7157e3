package process

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// inside runs a script beside the program of a sandbox and returns its output.
func inside(t *testing.T, b pando.Sandbox, script string) string {
	t.Helper()
	_, out, err := b.Exec(t.Context(), []string{"sh", "-c", script})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestHostsSocketsAreNotThere(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	for _, dir := range []string{"/run", "/tmp", "/var/tmp", "/root", "/home"} {
		file, err := os.MkdirTemp(dir, "hosts-own-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(file)
		l, err := net.Listen("unix", filepath.Join(file, "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := inside(t, b, "ls -d "+file+" 2>&1 && echo there"); strings.Contains(got, "there") {
			t.Errorf("an instance sees %s", file)
		}
	}
	if got := inside(t, b,
		"ls /run; test -S $PANDO_SOCKET -a -S $NOTIFY_SOCKET && echo own"); got != "pando\nown" {
		t.Errorf("in /run there is %q", got)
	}
}

func TestPrivateDev(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	got := strings.Fields(inside(t, b, "ls /dev"))
	want := []string{"fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
		"stdout", "tty", "urandom", "zero"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("/dev has %v, want %v", got, want)
	}
	const use = "echo x >/dev/null && head -c 4 /dev/urandom | wc -c && echo x >/dev/full; echo $?"
	if got := inside(t, b, use); !strings.HasPrefix(got, "4\n") {
		t.Errorf("the devices do not work: %s", got)
	}
	if got := inside(t, b, "python3 -c 'import os; os.openpty(); print(1)'"); got != "1" {
		t.Errorf("no terminal can be opened: %s", got)
	}
}

// Root inside has no capabilities, and the files that check only for root are read-only.
func TestRootInsideCannotChangeTheMachine(t *testing.T) {
	d := newDriver(t, 0)
	for _, mode := range []string{"", pando.UsernsHost} {
		with := func(s *pando.Spec) { s.User, s.UsernsMode = "root", mode }
		cannotChangeTheMachine(t, run(t, d, with, "sleep", "60"))
	}
}

func cannotChangeTheMachine(t *testing.T, b pando.Sandbox) {
	t.Helper()
	for _, script := range []string{
		"echo x >/proc/sys/kernel/core_pattern", "echo h >/proc/sysrq-trigger", "mknod /tmp/disk b 8 0",
		"mount -t tmpfs x /tmp",
		"umount /dev", "mount -o remount,rw /", "hostname other", "echo 1 >/proc/sys/net/ipv4/ip_forward",
		"chroot / true", "ip link set lo down",
		"rmdir /sys/fs/cgroup/*/pando", "kill -9 1 && sleep 1 && false", "head -c 1 /proc/kcore | grep .",
		"touch /sys/kernel/x", "rm -f /run/pando/self.sock",
	} {
		if got := inside(t, b, "("+script+") >/dev/null 2>&1 && echo done"); got == "done" {
			t.Errorf("root inside may: %s", script)
		}
	}
	if got := inside(t, b, "id -u"); got != "0" {
		t.Errorf("it runs as %s", got)
	}
}

func TestSysShowsOwnNetworkAndOwnLimits(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.Resources.MemoryBytes = 64 << 20
	}, "sleep", "60")
	if got := inside(t, b, "ls /sys/class/net"); got != "eth0\nlo" {
		t.Errorf("/sys/class/net has %q", got)
	}
	const limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
	if got := inside(t, b, limit); got != "67108864" {
		t.Errorf("the limit that a program reads is %q", got)
	}
}

// The folders above a working directory may be closed to an unprivileged user, as for a clone in
// /root.
func TestWorkingDirectoryIsReachable(t *testing.T) {
	d := newDriver(t, 1)
	for _, parent := range []string{"/root", "/home", "/run", "/tmp"} {
		closed, err := os.MkdirTemp(parent, "closed-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(closed)
		dir := filepath.Join(closed, "app")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "prog"),
			[]byte("#!/bin/sh\necho $(pwd); id -u; exec sleep 60\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := run(t, d, func(s *pando.Spec) { s.WorkingDir = dir }, "./prog")
		if got := inside(t, b, "pwd; ls"); got != dir+"\nprog" {
			t.Errorf("in its working directory %s it sees %q", dir, got)
		}
		if err := b.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestHiddenFoldersAreEmpty(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a folder of the host needs root")
	}
	dir, err := os.MkdirTemp("/var/lib", "hidden-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, 0)
	d.Hidden = []string{dir}
	above := func(s *pando.Spec) { s.Folders = []pando.Folder{{Path: "/var/lib", Write: true}} }
	if got := inside(t, run(t, d, above, "sleep", "60"), "ls "+dir+"; ls -d "+dir); got != dir {
		t.Errorf("it sees %q", got)
	}
}

func TestUserByNameAndNumber(t *testing.T) {
	d := newDriver(t, 0)
	for user, want := range map[string]string{"nobody": "65534:65534", "daemon": "1:1",
		"1234:5678": "1234:5678", "nobody:daemon": "65534:1"} {
		b := run(t, d, func(s *pando.Spec) { s.User = user }, "sleep", "60")
		if got := inside(t, b, "echo $(id -u):$(id -G | tr ' ' ,)"); got != want {
			t.Errorf("user %s runs as %s, want %s and no other group", user, got, want)
		}
	}
}

// In a v2 hierarchy the program is cloned into its cgroup, and so is a command beside it. The shim
// stays outside.
func TestProgramIsInItsCgroupOfV2(t *testing.T) {
	root := mountCgroup2(t)
	d := newDriverIn(t, 1, root)
	b := run(t, d, nil, "sleep", "60")
	dir := filepath.Join(root, d.cgroupName(b.(*sandbox).slot.Number))
	procs := func() []string {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	if got := procs(); len(got) != 1 || got[0] == strconv.Itoa(b.(*sandbox).slot.PID) {
		t.Errorf("in the cgroup are %v, want the program alone; the shim is %d", got,
			b.(*sandbox).slot.PID)
	}
	if got := inside(t, b, "cat /proc/self/cgroup"); !strings.Contains(got,
		"0::/"+d.cgroupName(b.(*sandbox).slot.Number)) {
		t.Errorf("a command is in %q", got)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := os.Stat(dir); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("its cgroup is left")
		}
	}
}

// mountCgroup2 mounts the v2 hierarchy of this machine at a folder of the test.
func mountCgroup2(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return root
}

// Two instances of one user do not reach each other's API: each has its own socket, and a socket
// accepts only its own instance.
func TestInstancesOfOneUserAreTold(t *testing.T) {
	d := newDriver(t, 0)
	same := func(s *pando.Spec) { s.User = "nobody" }
	a, b := run(t, d, same, "sleep", "60"), run(t, d, same, "sleep", "60")
	answered := make(chan struct{}, 2)
	for _, x := range []pando.Sandbox{a, b} {
		go func() {
			if c, err := x.Listener().Accept(); err == nil {
				c.Close()
				answered <- struct{}{}
			}
		}()
	}
	const dial = "python3 -c 'import socket,sys; s=socket.socket(socket.AF_UNIX); " +
		"s.connect(sys.argv[1]); s.recv(1)' "
	if got := inside(t, a, dial+b.(*sandbox).slot.self()+"/self.sock 2>&1"); !strings.Contains(got,
		"No such file") {
		t.Errorf("one finds the other's socket: %s", got)
	}
	inside(t, a, dial+"$PANDO_SOCKET")
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("one does not reach its own API")
	}
}

// An instance is identified by its cgroup, not by its namespaces: a process may make namespaces,
// and root may enter any.
func TestNamespacesMakeNobodyAnInstance(t *testing.T) {
	d := newDriver(t, 0)
	lift := func(s *pando.Spec) { s.SecurityOpt = []string{pando.SeccompUnconfined} }
	b := run(t, d, lift, "sleep", "60")
	go http.Serve(b.Listener(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	}))
	const ask = "curl -sS --max-time 5 --unix-socket $PANDO_SOCKET http://self/"
	if got := inside(t, b, ask); got != "hello" {
		t.Errorf("a command of the instance: %s", got)
	}
	if got := inside(t, b, "unshare --user --pid --fork sh -c '"+ask+"'"); got != "hello" {
		t.Errorf("from a pid namespace of the instance's: %s", got)
	}
	pid := strconv.Itoa(b.(*sandbox).slot.PID)
	nsenter := exec.Command("nsenter", "--target", pid, "--all", "env",
		"PANDO_SOCKET="+inside(t, b, "echo $PANDO_SOCKET"), "sh", "-c", ask)
	if out, err := nsenter.CombinedOutput(); err == nil || strings.Contains(string(out), "hello") {
		t.Errorf("somebody of the host in its namespaces was answered: %v\n%s", err, out)
	}
}
