package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"pando.run/pando"
)

// schema is the schema of the database in Debian's package.
const schema = "/usr/share/openvswitch/vswitch.ovsschema"

// Daemons are an Open vSwitch in a folder of its own, apart from the machine's. It serves the
// network namespace of the caller.
type Daemons struct {
	Dir string
}

// Start starts a database and a switch, and returns when both answer.
func Start(ctx context.Context, dir string) (*Daemons, error) {
	for _, name := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w: there is no %s; apt-get install openvswitch-switch",
				pando.ErrUnsupported, name)
		}
	}
	d := &Daemons{Dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for a switch: %w", err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	quiet := func(name string) []string {
		return []string{
			"--pidfile=" + in(name+".pid"), "--detach", "--no-chdir", "--log-file=" + in(name+".log"),
			"-vconsole:off",
		}
	}
	steps := [][]string{
		{"ovsdb-tool", "create", in("conf.db"), schema},
		append([]string{"ovsdb-server", in("conf.db"), "--remote=punix:" + in("db.sock")},
			quiet("ovsdb-server")...),
		{vsctl, "--db=unix:" + in("db.sock"), "--no-wait", "init"},
		append([]string{"ovs-vswitchd", "unix:" + in("db.sock")}, quiet("ovs-vswitchd")...),
	}
	if _, err := os.Stat(in("conf.db")); err == nil {
		steps = steps[1:]
	}
	for _, args := range steps {
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
		if out, err := c.CombinedOutput(); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w: %s", args[0], err, firstLine(string(out))),
				d.Stop())
		}
	}
	return d, nil
}

// Stop ends both programs and waits for their end.
func (d *Daemons) Stop() error {
	var errs []error
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server"} {
		errs = append(errs, d.end(name, syscall.SIGTERM))
	}
	return errors.Join(errs...)
}

// Kill ends the switch without a chance to clean up, and leaves the database.
func (d *Daemons) Kill() error { return d.end("ovs-vswitchd", syscall.SIGKILL) }

func (d *Daemons) end(name string, how syscall.Signal) error {
	text, err := os.ReadFile(filepath.Join(d.Dir, name+".pid"))
	if err != nil {
		return nil // it does not run
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read the process of %s: %w", name, err)
	}
	fd, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	handle, err := pidfd(pid)
	if err != nil {
		return nil // it has ended
	}
	defer handle.Close()
	if err := fd.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", name, err)
	}
	return handle.await(endMax)
}
