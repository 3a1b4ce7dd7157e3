package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
	// During exec a process has a program and no arguments yet. An ended process has neither.
	if err == nil && len(line) == 0 {
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return pid, err == nil
	}
	words := strings.Split(string(line), "\x00")
	return pid, err == nil && len(words) > 1 && words[1] == role
}

func startDaemon(p place, role string) error {
	for _, dir := range []string{p.Run, p.logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start the %s: %w", role, err)
		}
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
	pid := []byte(strconv.Itoa(cmd.Process.Pid))
	if err := os.WriteFile(pidFile(p, role), pid, 0o644); err != nil {
		return fmt.Errorf("write the pid of the %s: %w", role, err)
	}
	return cmd.Process.Release()
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
