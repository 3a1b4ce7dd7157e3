package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func daemonLog(p place, role string) string { return filepath.Join(p.logs(), role+".log") }
func pidFile(p place, role string) string   { return filepath.Join(p.Run, role+".pid") }

// daemon finds the process of a role. It ignores a pid that now belongs to another program.
func daemon(p place, role string) (pid int, alive bool) {
	b, err := os.ReadFile(pidFile(p, role))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	// During exec a process has a program and no arguments yet. If another thread than the first one
	// calls exec, the first one ends before, and the other one then takes its place. So an ended
	// process has one thread, and afterwards still no program. The order matters: exec goes on
	// between the two looks.
	if err == nil && len(line) == 0 {
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return pid, err == nil || len(threads) > 1
	}
	words := strings.Split(string(line), "\x00")
	return pid, err == nil && len(words) > 1 && words[1] == role
}

// startDaemon starts a daemon unless it runs. Callers may race: `pando up` and the warden.
func startDaemon(p place, role string) error {
	for _, dir := range []string{p.Run, p.logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start the %s: %w", role, err)
		}
	}
	lock, err := os.OpenFile(pidFile(p, role)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("start the %s: lock %s: %w", role, lock.Name(), err)
	}
	if _, alive := daemon(p, role); alive {
		return nil
	}
	log, err := os.OpenFile(daemonLog(p, role), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	cmd := exec.Command(self, append([]string{role}, p.args()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	spare(cmd.Process.Pid, role)
	if err := writePid(p, role, cmd.Process.Pid); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// writePid records the process of a role. The daemon and its starter write at the same time, each
// to a file of its own.
func writePid(p place, role string, pid int) error {
	if is, _ := daemon(p, role); is == pid {
		return nil
	}
	path := pidFile(p, role)
	fresh := fmt.Sprintf("%s.new.%d", path, os.Getpid())
	err := os.WriteFile(fresh, []byte(strconv.Itoa(pid)), 0o644)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("write the pid of the %s: %w", role, err)
	}
	return nil
}

// tail returns the last lines that were appended to a log after the byte from. It cuts the stack
// traces of a crash.
func tail(path string, from int64, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := string(b[min(from, int64(len(b))):])
	text, _, _ = strings.Cut(text, "\n\ngoroutine ")
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
