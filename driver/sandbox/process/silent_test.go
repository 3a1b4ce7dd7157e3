package process

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// nextEvent returns the next event of a sandbox.
func nextEvent(t *testing.T, b pando.Sandbox) pando.SandboxEvent {
	t.Helper()
	select {
	case e, open := <-b.Events():
		if !open {
			t.Fatal("no event follows")
		}
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event comes")
	}
	return pando.SandboxEvent{}
}

// A stopped shim keeps no new agent out. Its sandbox is set aside by name, its program runs on, and
// it belongs to the agent as soon as the shim answers.
func TestAStoppedShimKeepsNoAgentOut(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sh", "-c", "while ! test -e /tmp/end; do sleep 0.01; done; exit 5")
	slot := b.(*sandbox).slot
	b.(*sandbox).close()
	if err := unix.Kill(slot.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !slot.stopped(); {
		if time.Now().After(deadline) {
			t.Fatal("SIGSTOP does not stop it")
		}
	}
	began := time.Now()
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if took := time.Since(began); took > 2*shimWaitMax {
		t.Errorf("the agent was kept out for %s", took)
	}
	if e := nextEvent(t, found[0]); e.Kind != pando.SandboxSilent || !strings.Contains(e.Why, "stopped") {
		t.Errorf("the first event is %+v", e)
	}
	if err := found[0].Notify(t.Context()); err == nil {
		t.Error("a stopped shim answered")
	}
	if err := unix.Kill(slot.PID, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if e := nextEvent(t, found[0]); e.Kind != pando.SandboxAnswers {
		t.Fatalf("after SIGCONT: %+v", e)
	}
	inside(t, found[0], "touch /tmp/end")
	if e := exited(t, found[0]); e.Code != 5 {
		t.Errorf("it exited with %+v", e)
	}
}

// The end of the talk with a shim is not the end of its program. A new talk follows. An order to end
// continues a stopped shim, so that the program can end by itself.
func TestABrokenTalkEndsNoProgram(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, func(s *pando.Spec) { s.StopSeconds = 20 }, "sh", "-c",
		"trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done")
	awaitLast(t, b, "up")
	if err := b.(*sandbox).watch.CloseRead(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []pando.SandboxEventKind{pando.SandboxSilent, pando.SandboxAnswers} {
		if e := nextEvent(t, b); e.Kind != want {
			t.Fatalf("got %+v, want %s", e, want)
		}
	}
	if err := unix.Kill(b.(*sandbox).slot.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if e := nextEvent(t, b); e.Kind != pando.SandboxSilent {
		t.Fatalf("a shim was stopped while the agent runs: %+v", e)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- b.Stop(t.Context()) }()
	for {
		e := nextEvent(t, b)
		if e.Kind != pando.SandboxExited {
			continue
		}
		if e.Exit.Code != 6 {
			t.Errorf("it exited with %+v", e.Exit)
		}
		break
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// An error of the agent itself, such as too many open files, is no sign that something is gone: no
// program ends, and no file goes.
func TestAnErrorOfThisHostEndsNothing(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "60")
	slot := b.(*sandbox).slot
	b.(*sandbox).close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	alive, ends := slot.alive(), slot.destroy()
	all, attaches := d.Attach(t.Context())
	_, lists := records(d.RunDir)
	swept := sweep(d.LogDir, d.livingLogs, time.Now().Add(1000*time.Hour), keeping{})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !alive || ends == nil || attaches == nil || lists == nil || swept == nil {
		t.Errorf("with too many open files: alive %t, destroy %v, attach %v %v, records %v, sweep %v",
			alive, ends, all, attaches, lists, swept)
	}
	if _, err := os.Stat(slot.dir); err != nil {
		t.Error(err)
	}
	found, err := d.Attach(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	inside(t, found[0], "true")
}

// A sandbox with a record that makes no sense is left alone, with its number.
func TestASandboxWithAnUnreadableRecordIsLeftAlone(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "60")
	slot := b.(*sandbox).slot
	file := slot.dir + "/slot.json"
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := d.found()
	for _, s := range found {
		d.pool.adopt(s)
	}
	if err != nil || len(found) != 0 || !slot.alive() || !d.pool.taken[slot.Number] {
		t.Errorf("found %v (%v), alive %t, taken %v", found, err, slot.alive(), d.pool.taken)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
}
