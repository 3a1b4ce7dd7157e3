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
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "lab-init" {
		os.Exit(InitMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "answer" {
		answer()
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

// answer tells everybody who dials port 7000 the host's name, until it is killed.
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
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.HasPrefix(line, "listening <nil>") {
		t.Fatalf("server on %s said %q, %v", host, line, err)
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
	run := func(host string, argv ...string) string {
		cmd, err := l.Exec(ctx, host, argv...)
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %v: %s", host, argv, err, out)
		}
		return strings.TrimSpace(string(out))
	}
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
