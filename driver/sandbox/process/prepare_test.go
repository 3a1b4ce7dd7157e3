package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/process/wire"
)

// speaks is an instance that first prints a word.
func speaks(word string) pando.SandboxSpec {
	spec := pando.Spec{Name: "web", Command: []string{"sh", "-c", "echo " + word + "; sleep 60"},
		WorkingDir: "/", StopSeconds: 0.3}.WithDefaults()
	return pando.SandboxSpec{Instance: pando.Instance{ID: "web-1", Service: spec.Key(),
		Role: pando.RoleReplica}, Spec: spec, VIP4: vip}
}

// withPool returns a driver with a sandbox in its pool.
func withPool(t *testing.T) *Driver {
	t.Helper()
	d := newDriver(t, 1)
	awaitPool(t, d)
	return d
}

// breathe waits a moment between two looks.
func breathe(t *testing.T) {
	t.Helper()
	if err := pando.Sleep(t.Context(), clock.Clock{}, time.Millisecond); err != nil {
		t.Fatal(err)
	}
}

func awaitPool(t *testing.T, d *Driver) {
	t.Helper()
	for deadline := time.Now().Add(patience); d.pool.short(); breathe(t) {
		if time.Now().After(deadline) {
			t.Fatal("the pool stays empty")
		}
	}
}

// prepare returns the sandbox with a loaded program.
func prepare(t *testing.T, d *Driver, spec pando.SandboxSpec) *prepared {
	t.Helper()
	if err := d.Prepare(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepared[spec.Instance.ID]
}

// programs returns the instance's processes in a sandbox, with their states from proc(5).
func programs(t *testing.T, p *prepared) (out []string) {
	t.Helper()
	shim := p.box.slot.PID
	pids, err := p.box.slot.cgroup.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || pid == shim {
			continue
		}
		fields := wire.SplitStat(string(text))
		out = append(out, fields[0]+" "+fields[11]+" "+fields[12]) // state, and its run time
	}
	return out
}

func awaitLine(t *testing.T, b pando.Sandbox, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !slices.ContainsFunc(b.LastLines(5),
		func(l string) bool { return strings.Contains(l, want) }); breathe(t) {
		if time.Now().After(deadline) {
			t.Fatalf("it printed %q, want %q", b.LastLines(5), want)
		}
	}
}

func TestWhatIsPreparedRunsNothingBeforeItsStart(t *testing.T) {
	d := withPool(t)
	p := prepare(t, d, speaks("hello"))
	if found := programs(t, p); len(found) != 1 || found[0] != "t 0 0" {
		t.Fatalf("processes %q, want one that the kernel has stopped and that has not run", found)
	}
	if code, _, err := p.box.Exec(t.Context(), []string{"true"}); err == nil {
		t.Errorf("a command ran (%d) where no program has begun", code)
	}
	if lines := p.box.LastLines(5); len(lines) > 0 {
		t.Errorf("it printed %q", lines)
	}
	b, err := d.Start(t.Context(), speaks("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if b != pando.Sandbox(p.box) {
		t.Error("another sandbox was started than was prepared")
	}
	awaitLine(t, b, "hello")
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Signal != "SIGTERM" {
		t.Errorf("ended by %q, want the stop signal", e.Signal)
	}
}

func TestWhatIsPreparedOtherwiseThanItIsWantedIsNotStarted(t *testing.T) {
	d := withPool(t)
	p := prepare(t, d, speaks("old"))
	b, err := d.Start(t.Context(), speaks("new"))
	if err != nil {
		t.Fatal(err)
	}
	awaitLine(t, b, "new")
	if p.box.slot.alive() {
		t.Error("what was prepared is still there")
	}
}

func TestWhatIsPreparedAndNotStartedLeavesNothing(t *testing.T) {
	d := withPool(t)
	p := prepare(t, d, speaks("never"))
	d.Discard("web-1")
	d.Discard("web-1") // it no longer exists
	d.removals.Wait()
	if p.box.slot.alive() {
		t.Error("its shim is still there")
	}
	if _, err := os.Stat(p.box.slot.dir); !os.IsNotExist(err) {
		t.Errorf("its folder is still there (%v)", err)
	}
	if found, err := os.ReadDir(d.logDir(pando.DefaultService("web"), "web-1")); len(found) > 0 {
		t.Errorf("it has a log: %v %v", found, err)
	}
	if n := remains(t); n > 1 {
		t.Errorf("%d cgroups are left, want the pool's", n)
	}
}

// The agent dies between a preparation and the start: the next agent finds no instance.
func TestWhatIsPreparedIsNoInstanceForTheNextAgent(t *testing.T) {
	d := withPool(t)
	p := prepare(t, d, speaks("never"))
	d.mu.Lock()
	delete(d.prepared, "web-1") // no agent has it any more
	d.mu.Unlock()
	if found, err := d.Attach(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	if p.box.slot.alive() {
		t.Error("its shim is still there")
	}
}

// The shim reported that its sandbox is empty, and keeps it empty.
func TestAGoIsTooLateOnceTheSandboxWasCalledEmpty(t *testing.T) {
	d := withPool(t)
	p := prepare(t, d, speaks("never"))
	other, err := d.open(t.Context(), &slot{PID: p.box.slot.PID, Started: p.box.slot.Started,
		dir: p.box.slot.dir, cgroup: p.box.slot.cgroup}, wire.Request{})
	if err != nil || !other.empty {
		t.Fatalf("the sandbox is called empty: %v, %v", other != nil && other.empty, err)
	}
	defer other.close()
	if err := wire.Send(p.box.watch, wire.Request{Verb: "go"}, -1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(programs(t, p)) > 0; breathe(t) {
		if time.Now().After(deadline) {
			t.Fatalf("processes %q are left", programs(t, p))
		}
	}
	if lines := p.box.LastLines(5); len(lines) > 0 {
		t.Errorf("it printed %q", lines)
	}
}
