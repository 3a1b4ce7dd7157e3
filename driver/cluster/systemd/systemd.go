package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"pando.run/pando"
)

// Dir is the folder for the units of a machine's operator.
const Dir = "/etc/systemd/system"

// Manager installs and controls units by the program systemctl.
type Manager struct {
	Dir string // of the units; "" means Dir
	// Booted is a folder that exists while systemd is the machine's first process; "" means
	// /run/systemd/system.
	Booted string
}

func (m Manager) file(u string) string {
	dir := m.Dir
	if dir == "" {
		dir = Dir
	}
	return filepath.Join(dir, u+".service")
}

// Runs reports whether systemd is this machine's first process.
func (m Manager) Runs() bool {
	at := m.Booted
	if at == "" {
		at = "/run/systemd/system"
	}
	st, err := os.Lstat(at)
	return err == nil && st.IsDir()
}

// Installed reports whether there is a unit of this name that Install wrote.
func (m Manager) Installed(name string) bool {
	text, err := os.ReadFile(m.file(name))
	return err == nil && strings.HasPrefix(string(text), mark)
}

// foreign returns an error if a unit has the name of one of ours and Install did not write it.
func (m Manager) foreign(u Unit) error {
	path := m.file(u.Name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && m.Installed(u.Name) {
		return nil
	}
	return fmt.Errorf("%w: %s is there, and `pando install` did not write it; move it away first",
		pando.ErrExists, path)
}

// Install writes units, all or nothing each, and enables them: they start at every boot. It starts
// none.
func (m Manager) Install(ctx context.Context, units ...Unit) error {
	names := []string{"enable"}
	for _, u := range units {
		if err := m.foreign(u); err != nil {
			return err
		}
	}
	for _, u := range units {
		path := m.file(u.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the folder for units: %w", err)
		}
		err := os.WriteFile(path+".new", []byte(u.Text()), 0o644)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			return fmt.Errorf("write the unit %s: %w", path, err)
		}
		names = append(names, u.File())
	}
	if err := m.control(ctx, "daemon-reload"); err != nil {
		return err
	}
	return m.control(ctx, names...)
}

// Remove disables and removes units. Missing units are no error.
func (m Manager) Remove(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		if !m.Installed(name) {
			continue
		}
		errs = append(errs, m.control(ctx, "disable", name+".service"))
		if err := os.Remove(m.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove a unit: %w", err))
		}
	}
	return errors.Join(append(errs, m.control(ctx, "daemon-reload"))...)
}

// Start starts units and waits until they are ready.
func (m Manager) Start(ctx context.Context, names ...string) error {
	return m.control(ctx, append([]string{"start"}, files(names)...)...)
}

// Stop stops units and waits for their end.
func (m Manager) Stop(ctx context.Context, names ...string) error {
	return m.control(ctx, append([]string{"stop"}, files(names)...)...)
}

func files(names []string) []string {
	out := make([]string, len(names))
	for n, name := range names {
		out[n] = name + ".service"
	}
	return out
}

// control runs systemctl. Its output explains a failure.
func (m Manager) control(ctx context.Context, args ...string) error {
	if !m.Runs() {
		return fmt.Errorf("systemctl %s: %w: systemd does not run on this machine; "+
			"`pando up` starts the daemons without it", args[0], pando.ErrRefused)
	}
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(string(out)))
	}
	return nil
}

// Ready tells systemd that this daemon has started. It does nothing for a daemon without a unit.
func Ready() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }

// Watch tells systemd until ctx ends that this daemon lives, each time that alive returns in time.
// A daemon whose locks are stuck falls silent, and systemd starts it again.
func Watch(ctx context.Context, clock pando.Clock, alive func()) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	watch(ctx, clock, limit, alive, func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) })
}

func watch(
	ctx context.Context, clock pando.Clock, limit time.Duration, alive, tell func(),
) {
	for {
		alive() // it blocks while the daemon is stuck
		tell()
		if pando.Sleep(ctx, clock, limit/3) != nil {
			return
		}
	}
}
