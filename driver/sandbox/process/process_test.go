package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/process/shim"
)

// The test binary is also the pando binary of its tests: it can be a shim.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		os.Exit(shim.Main(os.Args[2:]))
	}
	if os.Geteuid() == 0 && os.Getenv("PROCESS_TEST_NETNS") == "" {
		os.Exit(inOwnNetwork())
	}
	if os.Geteuid() == 0 {
		if err := address(); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// address gives the network namespace of the tests the basics of a host: a loopback device that is
// up, and an address.
func address() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	at, err := netlink.ParseAddr("192.0.2.1/32")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, at))
}

// inOwnNetwork runs the tests in their own network namespace, where their links meet no others.
func inOwnNetwork() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "PROCESS_TEST_NETNS=own")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread() // Pdeathsig refers to this thread's death
	if err := cmd.Run(); err != nil {
		return 1
	}
	return 0
}

// patience bounds the wait for a program on a busy machine.
const patience = time.Minute

// testHost is unique among the tests that run on this machine.
var testHost = pando.HostName("ptest" + strconv.Itoa(os.Getpid()))

var vip = netip.MustParseAddr("10.127.250.250")

func newDriver(t *testing.T, pool int) *Driver {
	t.Helper()
	return newDriverIn(t, pool, cgroup.Root)
}

// newDriverIn returns a driver with the cgroups below a root. The changes come before its start,
// because its pool reads the configuration. Its sandboxes end with the test.
func newDriverIn(t *testing.T, pool int, root string, changes ...func(*Config)) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v4, v6 := pando.InstanceRange(1000)
	groups, err := cgroup.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Cgroups: groups, Groups: root, Host: testHost, RunDir: filepath.Join(dir, "run"),
		LogDir: filepath.Join(dir, "log"), Self: []string{"/proc/self/exe"},
		Prefix4: v4, Prefix6: v6, Pool: pool, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		Volumes: filepath.Join(dir, "volumes"), Users: filepath.Join(dir, "users"),
	}
	for _, change := range changes {
		change(&c)
	}
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Purge(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func run(t *testing.T, d *Driver, change func(*pando.Spec), command ...string) pando.Sandbox {
	t.Helper()
	spec := pando.Spec{Name: "web", Command: command, WorkingDir: "/", StopSeconds: 0.3}
	if change != nil {
		change(&spec)
	}
	spec = spec.WithDefaults()
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key(), Role: pando.RoleFirst}, Spec: spec,
		VIP4: vip,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func exited(t *testing.T, b pando.Sandbox) pando.Exit {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-b.Events():
			if !ok {
				t.Fatal("no exit was reported")
			}
			if e.Kind == pando.SandboxExited {
				return e.Exit
			}
		case <-deadline:
			t.Fatal("it does not exit")
		}
	}
}

// awaitUsage waits until a sandbox's usage is as wanted.
func awaitUsage(t *testing.T, b pando.Sandbox, want func(pando.Usage) bool) {
	t.Helper()
	// The wait leaves the processors to the program.
	for deadline := time.Now().Add(patience); ; breathe(t) {
		u, err := b.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want(u) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it uses %+v; log: %v", u, b.LastLines(5))
		}
	}
}

func TestAProgramRunsUnprivilegedInItsOwnSandbox(t *testing.T) {
	d := newDriver(t, 1)
	b := run(t, d, nil, "/bin/sh", "-c", `id -u; hostname; echo $PANDO_INSTANCE
grep -E "NoNewPrivs|CapEff|CapBnd" /proc/self/status
ls /proc | grep -c "^[0-9]"
exit 7`)
	if e := exited(t, b); e.Code != 7 {
		t.Errorf("exit %+v, want 7", e)
	}
	out := strings.Join(b.LastLines(20), "\n")
	for _, want := range []string{"200000", "\nweb-1\nweb-1\n", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheHostReachesTheInstanceAndItsSocketKnowsItsOwn(t *testing.T) {
	d := newDriver(t, 1)
	b := run(t, d, nil, "python3", "-c", `
import socket, os
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["PANDO_SOCKET"])
s.sendall(b"GET / HTTP/1.0\r\n\r\n"); print(s.recv(100)[:15])
l = socket.create_server(("0.0.0.0", 80))
while True: l.accept()`)
	go http.Serve(b.Listener(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	}))
	addr := net.JoinHostPort(b.Link().IP4.String(), "80")
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			break
		}
	}
	if err != nil {
		t.Fatalf("%v; log: %v", err, b.LastLines(20))
	}
	own := b.(*sandbox).listener
	c, err := net.Dial("unix", filepath.Join(b.(*sandbox).slot.self(), "self.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("a foreigner was answered")
	}
	c.Close()
	if own.foreign.Load() != 1 {
		t.Errorf("%d foreigners were counted", own.foreign.Load())
	}
	if n, err := b.Flows(t.Context()); err != nil || n != 0 {
		t.Errorf("%d flows, %v", n, err)
	}
	code, out, err := b.Exec(t.Context(), []string{"/bin/sh", "-c", "echo inside; exit 3"})
	if err != nil || code != 3 || string(out) != "inside\n" {
		t.Errorf("exec: %d %q %v", code, out, err)
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	d := newDriver(t, 1)
	b := run(t, d, nil, "/bin/sh", "-c", `trap "" TERM; echo up; while :; do sleep 1; done`)
	for deadline := time.Now().Add(time.Minute); len(b.LastLines(1)) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("it prints nothing")
		}
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Signal != "SIGKILL" {
		t.Errorf("exit %+v, want by SIGKILL", e)
	}
}

func TestASandboxOutlivesTheAgentAndDiesWithItsShim(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "/bin/sleep", "1000")
	slot := b.(*sandbox).slot
	b.(*sandbox).close() // the agent is gone
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 || found[0].Instance() != "web-1" {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := found[0].Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := found[0].Resume(t.Context()); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(slot.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, found[0]); !strings.Contains(e.Signal, "SIGKILL") {
		t.Errorf("exit %+v", e)
	}
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs == 0 })
}

func TestErrorsNameTheCause(t *testing.T) {
	d := newDriver(t, 0)
	for want, change := range map[string]func(*pando.Spec){
		"PATH":                func(s *pando.Spec) { s.Command = []string{"no-such-program"} },
		"there is no program": func(s *pando.Spec) { s.Command = []string{"./nothing"} },
		"not executable":      func(s *pando.Spec) { s.Command = []string{"/etc/passwd"} },
		"working_dir":         func(s *pando.Spec) { s.WorkingDir = "/no/such/folder" },
		"no user":             func(s *pando.Spec) { s.User = "nobody-here" },
	} {
		spec := pando.Spec{Name: "web", Command: []string{"/bin/true"}, WorkingDir: "/"}
		change(&spec)
		_, err := d.Start(t.Context(), pando.SandboxSpec{Instance: pando.Instance{ID: "web-1",
			Service: spec.Key()}, Spec: spec})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %q", err, want)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	d := newDriver(t, 2)
	before := remains(t)
	for range 5 {
		b := run(t, d, nil, "/bin/sleep", "1000")
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for after := remains(t); after > before+2; after = remains(t) { // the pool's two
		if time.Now().After(deadline) {
			t.Fatalf("%d cgroups before, %d after", before, after)
		}
	}
}

func remains(t *testing.T) int {
	found, err := filepath.Glob("/sys/fs/cgroup/pids/pando/" + string(testHost) + "/default/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range found {
		if info, err := os.Stat(f); err == nil && info.IsDir() {
			n++
		}
	}
	return n
}
