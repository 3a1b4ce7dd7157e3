package unit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"pando.run/pando"
)

// process is one unit.
type process struct {
	driver  *Driver
	id      int
	command *exec.Cmd
	stdout  io.Reader
	logged  int64        // bytes in the group's log when the unit began
	cgroup  pando.Cgroup // set if the unit is limited
	cause   string       // a known cause of its end, beyond the exit status
}

var _ pando.Unit = (*process)(nil)

// Name implements pando.Unit.
func (p *process) Name() string { return p.driver.Name(p.id) }

// Device implements pando.Unit.
func (p *process) Device() string { return deviceOf(p.driver.Config.Name, p.id) }

func (p *process) control() string { return ControlSocket(p.driver.RunDir, p.Name()) }

// Status implements pando.Unit.
func (p *process) Status() (*pando.UnitStatus, error) {
	return Ask(p.control(), "status")
}

// Stop implements pando.Unit.
func (p *process) Stop() {
	_, _ = Ask(p.control(), "stop") // the unit may have ended
}

// Leave implements pando.Unit.
func (p *process) Leave() {
	_ = p.command.Process.Signal(syscall.SIGTERM) // the unit may have ended
}

// Kill implements pando.Unit.
func (p *process) Kill() {
	_ = p.command.Process.Kill() // the unit may have ended
}

// Wait implements pando.Unit.
func (p *process) Wait() pando.UnitEnd {
	_ = p.command.Wait() // the process state has the reason
	p.release()
	lines, account := p.lastWords()
	_ = os.RemoveAll(p.driver.folder(p.id)) // Close tries again
	return pando.UnitEnd{
		Exit: p.command.ProcessState.String(), Cause: p.cause, Lines: lines, Account: account,
	}
}

// ready waits until the unit is ready. It returns the reason if the unit fails to start.
func (p *process) ready() error {
	text, err := io.ReadAll(p.stdout)
	if err == nil && string(text) == "ready\n" {
		return nil
	}
	_ = p.command.Wait() // the process state has the reason
	reason := strings.TrimSpace(string(text))
	if reason == "" {
		reason = fmt.Sprint("it ended before it was ready: ", p.command.ProcessState)
	}
	return fmt.Errorf("%w: unit %s: %s", pando.ErrInvalid, p.Name(), reason)
}

// cgroupsOf returns the name of the control group that holds the groups of a tenant's units.
func cgroupsOf(tenant string) string { return filepath.Join("pando/fn", tenant) }

// confine makes the control group of the unit. It returns the files by which the unit enters the
// group; they become arguments.
func (p *process) confine() (entries []string, err error) {
	d := p.driver
	name := filepath.Join(cgroupsOf(d.Tenant), p.Name())
	if p.cgroup, err = d.Cgroups.Make(name); err != nil {
		return nil, err
	}
	// A killed group left it, with stale counts.
	if p.cgroup.OOMKilled() {
		if err := p.cgroup.Remove(); err != nil {
			return nil, err
		}
		if p.cgroup, err = d.Cgroups.Make(name); err != nil {
			return nil, err
		}
	}
	entry := p.cgroup.Entry()
	if entry.Folder != "" {
		entries = []string{filepath.Join(d.CgroupRoot, entry.Folder, "cgroup.procs")}
	}
	for _, tasks := range entry.Tasks {
		entries = append(entries, filepath.Join(d.CgroupRoot, tasks))
	}
	if err = p.cgroup.Limit(d.Limits); err != nil {
		p.release()
	}
	return entries, err
}

// release removes the control group of an ended process and notes whether the process ran out of
// memory.
func (p *process) release() {
	if p.cgroup == nil {
		return
	}
	d := p.driver
	if p.cgroup.OOMKilled() {
		p.cause = fmt.Sprintf("it needed more memory than its limit of %d MiB, see --unit-memory-mib",
			d.Limits.MemoryBytes>>20)
	}
	if err := p.cgroup.Remove(); err != nil {
		fmt.Fprintf(d.Log, "the control group of unit %s: %v\n", p.Name(), err)
	}
	d.Cgroups.Prune(cgroupsOf(d.Tenant))
	p.cgroup = nil
}
