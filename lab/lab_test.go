package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "lab-init" {
		os.Exit(InitMain(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == "make" {
		_, err := Up(context.Background(),
			Config{Hosts: 1, Name: "leashed", Self: "/proc/self/exe", Dir: os.Args[2], Leashed: true})
		fmt.Println("made", err)
		select {}
	}
	if len(os.Args) > 1 && os.Args[1] == "answer" {
		answer()
	}
	if len(os.Args) > 2 && os.Args[1] == "remove-data" {
		fmt.Print(removeData(os.Args[2]))
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "dial" {
		c, err := net.DialTimeout("tcp", os.Args[2], 5*time.Second)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		io.Copy(os.Stdout, c)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// answer sends the host's name to every client of port 7000, until it is killed.
func answer() {
	l, err := net.Listen("tcp", ":7000")
	fmt.Println("listening", err)
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			name, _ := os.Hostname()
			fmt.Fprint(c, name)
			c.Close()
		}
	}
	os.Exit(1)
}

// serve starts answer on a host and returns when it listens.
func serve(ctx context.Context, t *testing.T, l *Lab, host, self string) *exec.Cmd {
	t.Helper()
	server, err := l.Exec(ctx, host, self, "answer")
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.HasPrefix(line,
		"listening <nil>") {
		t.Fatalf("server on %s answered %q, %v", host, line, err)
	}
	return server
}

func TestHostsReachEachOtherAndLeaveNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "lab")
	begin := time.Now()
	l, err := Up(ctx, Config{Hosts: 10, Name: "host", Self: "/proc/self/exe", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("10 hosts in %v", time.Since(begin))
	defer l.Down()
	if l, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	if n := len(l.List()); n != 11 {
		t.Errorf("%d members live, want 10 hosts and the client", n)
	}
	run := func(host string, argv ...string) string { return output(t, l, host, argv...) }
	if got := run("host3", "hostname"); got != "host3" {
		t.Errorf("host3 calls itself %q", got)
	}
	if got := run("host3", "stat", "-f", "-c", "%T", "/sys/fs/bpf"); got != "bpf_fs" {
		t.Errorf("host3 has %q at /sys/fs/bpf", got)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := serve(ctx, t, l, "host3", self)
	if got := run("client", self, "dial", "10.126.0.3:7000"); got != "host3" {
		t.Errorf("the client dialled host3 and got %q", got)
	}
	if got := run("host10", self, "dial", "[fd70:616e:646f::3]:7000"); got != "host3" {
		t.Errorf("host10 dialled host3 over IPv6 and got %q", got)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err == nil {
		t.Error("the server on host3 outlived its host")
	}
	if left := l.List(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the lab's directory is still there: %v", err)
	}
}

// small makes a lab of a few hosts for a test.
func small(t *testing.T, name string) (*Lab, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := Up(t.Context(),
		Config{Hosts: 2, Name: name, Self: "/proc/self/exe", Dir: dir, Leashed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	return l, dir
}

func output(t *testing.T, l *Lab, host string, argv ...string) string {
	t.Helper()
	cmd, err := l.Exec(t.Context(), host, argv...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %v: %s", host, argv, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Two labs at once, with the same names and addresses, do not meet. Neither do the files and
// cgroups of one lab's hosts.
func TestLabsAndTheirHostsDoNotMeet(t *testing.T) {
	a, _ := small(t, "twin")
	b, _ := small(t, "twin")
	for _, w := range []struct {
		l          *Lab
		host, text string
	}{{a, "twin1", "a1"}, {a, "twin2", "a2"}, {b, "twin1", "b1"}} {
		output(t, w.l, w.host, "sh", "-c",
			"echo "+w.text+" | tee /var/lib/pando/who /run/who; mkdir /sys/fs/cgroup/pids/"+w.text)
	}
	for _, w := range []struct {
		l          *Lab
		host, text string
	}{{a, "twin1", "a1"}, {a, "twin2", "a2"}, {b, "twin1", "b1"}} {
		got := output(t, w.l, w.host, "sh", "-c",
			"cat /var/lib/pando/who /run/who; cd /sys/fs/cgroup/pids; ls -d ??")
		if got != strings.Repeat(w.text+"\n", 2)+w.text {
			t.Errorf("%s of one lab sees %q, want its own %s", w.host, got, w.text)
		}
	}
	if got := output(t, b, "twin2", "ls", "/var/lib/pando"); got != "" {
		t.Errorf("a host that wrote nothing has %q", got)
	}
}

// A lab has no record if its maker was killed half-way, or a useless one if the record is damaged.
// Both are taken down, and another lab can take their place.
func TestUnfinishedLabIsTakenDown(t *testing.T) {
	l, dir := small(t, "half")
	for name, spoil := range map[string]func() error{
		"no record": func() error { return os.Remove(filepath.Join(dir, "lab.json")) },
		"damaged record": func() error {
			return os.WriteFile(filepath.Join(dir, "lab.json"), []byte("{"), 0o600)
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "pando lab down") {
			t.Errorf("%s: opened with %v", name, err)
		}
		_, err := Up(t.Context(), Config{Hosts: 1, Name: "other", Self: "/proc/self/exe", Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: another was made on top of it: %v", name, err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if left := append(l.List(), inits(dir)...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Sweep(dir); err == nil {
		t.Error("a lab that is not there was taken down")
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // an empty folder counts as free
		t.Fatal(err)
	}
	again, err := Up(t.Context(),
		Config{Hosts: 1, Name: "again", Self: "/proc/self/exe", Dir: dir, Leashed: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Down(); err != nil {
		t.Error(err)
	}
}

func TestDeadHostIsNamed(t *testing.T) {
	l, dir := small(t, "mortal")
	if err := l.Hosts[1].end(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exec(t.Context(), "mortal2", "true"); err == nil ||
		!strings.Contains(err.Error(), "has died") {
		t.Errorf("got %v", err)
	}
	if n := len(l.List()); n != 2 {
		t.Errorf("%d members live, want the other host and the client", n)
	}
	if got := output(t, l, "mortal1", "hostname"); got != "mortal1" {
		t.Errorf("the other host answers %q", got)
	}
}

func TestFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(disk, "fill"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(disk, "lab")
	_, err := Up(t.Context(),
		Config{Hosts: 1, Name: "full", Self: "/proc/self/exe", Dir: dir, Leashed: true})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); err == nil || len(inits(dir)) > 0 {
		t.Errorf("left behind: %v %v", err, inits(dir))
	}
}

// A leashed lab ends with its maker, even if the maker is killed.
func TestLeashedLabEndsWithItsMaker(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir := filepath.Join(t.TempDir(), "lab")
	maker := exec.Command("/proc/self/exe", "make", dir)
	out, err := maker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "made <nil>\n" {
		t.Fatalf("the maker printed %q, %v", line, err)
	}
	if n := len(inits(dir)); n != 3 {
		t.Errorf("%d inits, want a host's, the client's and the switch's", n)
	}
	if err := maker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = maker.Wait()
	for deadline := time.Now().Add(time.Minute); len(inits(dir)) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("still there: %v", inits(dir))
		}
	}
	if err := Sweep(dir); err != nil {
		t.Error(err)
	}
}

// Linux detaches a mount in every namespace when its mount point is removed in one of them.
func TestLabOutlivesTheMachinesDataFolder(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	machine := exec.Command("/proc/self/exe", "remove-data", filepath.Join(t.TempDir(), "lab"))
	machine.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if out, err := machine.CombinedOutput(); err != nil || string(out) != "<nil>" {
		t.Errorf("%v: %s", err, out)
	}
}

// removeData makes a lab on a machine with a /var/lib that only this process sees, and removes the
// machine's data folder. It reports whether a host of the lab still has its data.
func removeData(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", filepath.Dir(data), "tmpfs", 0, ""); err != nil {
		return err
	}
	entries := []string{
		filepath.Join(data, "store"), filepath.Join(filepath.Dir(data), "others", "in"),
	}
	for _, e := range entries {
		if err := os.MkdirAll(e, 0o755); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := Up(ctx, Config{Hosts: 1, Name: "kept", Self: "/proc/self/exe", Dir: dir, Leashed: true})
	if err != nil {
		return err
	}
	defer l.Down()
	for n, script := range []string{
		"ls /var/lib/pando; echo text >/var/lib/pando/own; ls /var/lib/others", "cat /var/lib/pando/own",
	} {
		cmd, err := l.Exec(ctx, "kept1", "sh", "-c", script)
		if err != nil {
			return err
		}
		out, err := cmd.CombinedOutput()
		if want := []string{"in\n", "text\n"}[n]; err != nil || string(out) != want {
			return fmt.Errorf("%s on the host: %w: it prints %q, want %q", script, err, out, want)
		}
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	}
	return nil
}
