package process

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// event waits for the next event of a sandbox.
func event(t *testing.T, b pando.Sandbox) pando.SandboxEvent {
	t.Helper()
	select {
	case e := <-b.Events():
		return e
	case <-time.After(patience):
		t.Fatalf("nothing happens; log: %v", b.LastLines(5))
		return pando.SandboxEvent{}
	}
}

const notify = `
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(os.environ["NOTIFY_SOCKET"])
for text in sys.argv[1:]: s.send(text.encode())
time.sleep(60)
`

func TestProgramNotifies(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "python3", "-c", notify, "READY=0", "STATUS=loading 40%",
		"WATCHDOG=1\nREADY=1\n", "READY=1")
	if e := event(t, b); e.Kind != pando.SandboxNotified {
		t.Errorf("got %+v", e)
	}
	if got := b.LastLines(1); len(got) != 1 || got[0] != "status: loading 40%" {
		t.Errorf("the log has %v", got)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := event(t, b); e.Kind != pando.SandboxExited {
		t.Errorf("after one READY=1 came %+v", e)
	}
}

// The socket is also visible on the host. A sender there is not the instance.
func TestForeignersNotificationIsNotHeard(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	c, err := net.Dial("unixgram", filepath.Join(b.(*sandbox).slot.self(), "notify.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("READY=1")); err != nil {
		t.Fatal(err)
	}
	inside(t, b,
		"python3 -c 'import os,socket; s=socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "+
			"s.sendto(b\"STATUS=own\", os.environ[\"NOTIFY_SOCKET\"])'")
	for deadline := time.Now().Add(time.Minute); len(b.LastLines(1)) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the instance's own word did not come")
		}
	}
	select { // an earlier datagram would have arrived first
	case e := <-b.Events():
		t.Errorf("a foreigner made %+v happen", e)
	default:
	}
}

// The next agent receives the events that happened without an agent.
func TestExitIsToldToTheNextAgent(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sh", "-c", "echo last words; sleep 0.1; exit 6")
	b.(*sandbox).close()
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if e := exited(t, found[0]); e.Code != 6 || strings.Join(e.LastLines, "") != "last words" {
		t.Errorf("it exited with %+v", e)
	}
}

// A shim that was killed without an agent took its program along. The next agent receives the exit,
// with the evidence.
func TestEndOfTheShimIsToldToTheNextAgent(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sh", "-c", "echo last words; sleep 60")
	for deadline := time.Now().Add(time.Minute); len(b.LastLines(1)) == 0 &&
		time.Now().Before(deadline); {
	}
	slot := b.(*sandbox).slot
	b.(*sandbox).close()
	if err := unix.Kill(slot.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); slot.alive() && time.Now().Before(deadline); {
	}
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if e := exited(t, found[0]); e.Signal != shimEnded ||
		strings.Join(e.LastLines, "") != "last words" {
		t.Errorf("it exited with %+v", e)
	}
	if _, err := found[0].Listener().Accept(); err == nil {
		t.Error("somebody connected to a dead instance")
	}
	if err := found[0].Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := found[0].Remove(t.Context()); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); remains(t) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d cgroups are left", remains(t))
		}
	}
}

// The folder of logs is lost under ready sandboxes, with the disk of the host. The next program starts all
// the same, and has its log.
func TestAProgramStartsAfterTheFolderOfLogsIsLost(t *testing.T) {
	d := newDriver(t, 2)
	for deadline := time.Now().Add(patience); d.pool.short(); {
		if time.Now().After(deadline) {
			t.Fatal("the pool is not filled")
		}
	}
	if err := os.RemoveAll(d.LogDir); err != nil {
		t.Fatal(err)
	}
	b := run(t, d, nil, "sh", "-c", "echo begun; sleep 60")
	for deadline := time.Now().Add(patience); strings.Join(b.LastLines(1), "") != "begun"; {
		if time.Now().After(deadline) {
			t.Fatalf("its log has %v", b.LastLines(1))
		}
	}
}

// A sandbox is no instance if its agent claimed it and died before it started a program.
func TestClaimWithoutAProgramIsGivenBack(t *testing.T) {
	d := newDriver(t, 0)
	s, err := d.pool.claim()
	if err != nil {
		t.Fatal(err)
	}
	s.Instance, s.Service = "web-1", pando.DefaultService("web")
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	if found, err := d.Attach(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	if s.alive() {
		t.Error("its shim is still there")
	}
}

func TestOrphansAreReaped(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sh", "-c",
		"for n in $(seq 50); do (sh -c 'sleep 0.01 &') ; done; echo done; sleep 60")
	for deadline := time.Now().Add(patience); ; {
		got := inside(t, b, "cat /proc/[0-9]*/stat | grep -c ') [Z] '; true")
		if strings.Join(b.LastLines(1), "") == "done" && got == "0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s zombies; log %v", got, b.LastLines(1))
		}
	}
}

func TestStopSignalIsTheSpecs(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.StopSignal, s.StopSeconds = "SIGINT", 10
	}, "python3", "-c",
		"import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *a: sys.exit(3))\nprint('up', "+
			"flush=True)\ntime.sleep(60)")
	for deadline := time.Now().Add(time.Minute); len(b.LastLines(1)) == 0 &&
		time.Now().Before(deadline); {
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Code != 3 {
		t.Errorf("it exited with %+v, want by its own hand with 3", e)
	}
}

// An ended context means: now.
func TestStopDoesNotWaitForTheGraceOfAnEndedContext(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.StopSeconds = 60
	}, "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}
