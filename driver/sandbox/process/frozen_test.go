package process

import (
	"archive/tar"
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/criu"
	"pando.run/pando/driver/sandbox/process/wire"
)

// frozenDriver returns a driver that freezes, with a folder of layers.
func frozenDriver(t *testing.T) *Driver {
	t.Helper()
	root, err := exec.Command("../../../deploy/criu", "--print").Output()
	if err != nil {
		t.Skip("needs CRIU: deploy/criu unpacks it")
	}
	return newDriverIn(t, 2, cgroup.Root, func(c *Config) {
		c.Freezer = criu.Tool{Root: strings.TrimSpace(string(root)), Cache: t.TempDir()}
		c.Layers = t.TempDir()
	})
}

// counter serves its count, which only its memory has, and keeps a file in /tmp.
const counter = `
import socket, os, sys
open("/tmp/kept", "w").write("a file")
f = open("/tmp/open", "a")
l = socket.create_server(("0.0.0.0", 80), reuse_port=False)
ballast = os.urandom(int(sys.argv[1]) << 20)
print("started", flush=True)
n = 0
while True:
    c, _ = l.accept()
    while c.recv(1):
        n += 1
        f.write("x"); f.flush()
        kept = open("/tmp/kept").read().encode()
        c.sendall(b"%d %s %d\n" % (n, kept, os.stat("/tmp/open").st_size))
        print("served", n, flush=True)
    c.close()
`

func countIn(t *testing.T, b pando.Sandbox) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", b.Link().IP4.String()+":80", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return countOn(t, c)
}

func countOn(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	n, err := c.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(line[:n]))
}

func TestAFrozenProgramContinuesInAnotherSandbox(t *testing.T) {
	d := frozenDriver(t)
	b := run(t, d, nil, "python3", "-c", counter, "100")
	awaitLine(t, b, "started")
	if got := countIn(t, b); got != "1 a file 1" {
		t.Fatalf("before: %q", got)
	}
	dir := filepath.Join(d.Layers, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := net.Dial("tcp", b.Link().IP4.String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got := countOn(t, held); got != "2 a file 2" {
		t.Fatalf("before: %q", got)
	}
	began := time.Now()
	if _, err := b.Freeze(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Log("frozen after", time.Since(began))
	if err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := countOn(t, held); got != "3 a file 3" {
		t.Errorf("the frozen program continues with %q", got)
	}
	spec := pando.Spec{Name: "web", Command: []string{"python3", "-c", counter, "100"},
		WorkingDir: "/", StopSeconds: 0.3}.WithDefaults()
	began = time.Now()
	c, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-2", Service: spec.Key()}, Spec: spec, VIP4: vip,
		From: filepath.Base(dir)})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("thawed after", time.Since(began))
	if got := countIn(t, c); got != "3 a file 3" {
		t.Errorf("the copy continues with %q", got)
	}
	awaitLine(t, c, "served 3")
	if code, out, err := c.Exec(t.Context(), []string{"cat", "/tmp/kept"}); code != 0 {
		t.Errorf("exec in the copy: %d %q %v", code, out, err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if e := exited(t, c); e.Signal == "" {
		t.Errorf("the copy's exit: %+v", e)
	}
	if u, _ := os.ReadDir(dir); len(u) == 0 {
		t.Error("no files")
	}
}

// A program of another kernel or processor is refused before it has a sandbox.
func TestAProgramOfAnotherMachineIsRefused(t *testing.T) {
	d := frozenDriver(t)
	spec := pando.Spec{Name: "web", Command: []string{"python3"}, WorkingDir: "/"}.WithDefaults()
	own := machine()
	for name, m := range map[string]pando.Machine{
		"kernel 2.6.1":    {Kernel: "2.6.1", CPU: own.CPU},
		`processor "Z80"`: {Kernel: own.Kernel, CPU: "Z80"},
	} {
		s := stored{Program: wire.Frozen{PID: wire.PidFirst}, Machine: m}
		dir := t.TempDir()
		if err := storeFrozen(dir, s); err != nil {
			t.Fatal(err)
		}
		var moved bytes.Buffer
		if err := writeFrozen(tar.NewWriter(&moved), s); err != nil {
			t.Fatal(err)
		}
		i := pando.Instance{ID: "web-2", Service: spec.Key()}
		arrives := i
		arrives.Move = &pando.MoveMark{ID: "m1", From: "h2"}
		for how, start := range map[string]pando.SandboxSpec{
			"restored": {Instance: i, Spec: spec, VIP4: vip, From: dir},
			"moved":    {Instance: arrives, Spec: spec, VIP4: vip, Arrives: &moved},
		} {
			_, err := d.Start(t.Context(), start)
			if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), name) ||
				!strings.Contains(err.Error(), "choose a host with that") {
				t.Errorf("%s, %s: %v", name, how, err)
			}
		}
	}
}

func TestAVirtualMachineIsNotFrozen(t *testing.T) {
	err := freezable(&wire.Frozen{PID: wire.PidFirst}, pando.Spec{Kind: pando.KindVM})
	if !errors.Is(err, pando.ErrUnsupported) || !strings.Contains(err.Error(), "pando scale") {
		t.Errorf("%v", err)
	}
}
