package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Output is the result of a command.
type Output struct {
	Code   int
	Text   string // its output, errors included
	Result string // its standard output alone
}

// transcript collects both outputs of a command in their order, and the standard one apart.
type transcript struct {
	mu       sync.Mutex
	all, out bytes.Buffer
}

// stream is one of the outputs of a command.
type stream struct {
	to  *transcript
	out bool
}

// Write implements io.Writer.
func (s stream) Write(b []byte) (int, error) {
	s.to.mu.Lock()
	defer s.to.mu.Unlock()
	if s.out {
		s.to.out.Write(b)
	}
	return s.to.all.Write(b)
}

// Run runs a command inside all namespaces of a member of the lab, to its end.
func (m *Members) Run(host string, argv ...string) Output {
	m.Helper()
	return m.run(m.Context(), host, argv...)
}

// Must is Run for a command that must succeed. It returns the command's output.
func (m *Members) Must(host string, argv ...string) string {
	m.Helper()
	out := m.Run(host, argv...)
	if out.Code != 0 {
		m.Fatalf("%s on %s: exit code %d\n%s", strings.Join(argv, " "), host, out.Code, out.Text)
	}
	return out.Text
}

// Pando runs an operator's command on the first host. It must succeed.
func (p *Pando) Pando(args ...string) string {
	p.Helper()
	return p.Must(p.Host(), append([]string{p.Bin}, args...)...)
}

// PandoJSON runs an operator's command with -o json on the first host, and reads its result into v.
func (p *Pando) PandoJSON(v any, args ...string) {
	p.Helper()
	out := p.Run(p.Host(), append(append([]string{p.Bin}, args...), "-o", "json")...)
	if out.Code != 0 {
		p.Fatalf("pando %s: exit code %d\n%s", strings.Join(args, " "), out.Code, out.Text)
	}
	if err := json.Unmarshal([]byte(out.Result), v); err != nil {
		p.Fatalf("pando %s -o json: %v\n%s", strings.Join(args, " "), err, out.Text)
	}
}

// PandoFails runs an operator's command that must fail with an exit code. It returns the command's
// output.
func (p *Pando) PandoFails(code int, args ...string) string {
	p.Helper()
	out := p.Run(p.Host(), append([]string{p.Bin}, args...)...)
	if out.Code != code {
		p.Fatalf("pando %s: exit code %d, want %d\n%s", strings.Join(args, " "), out.Code, code, out.Text)
	}
	return out.Text
}

func (m *Members) run(ctx context.Context, host string, argv ...string) Output {
	ctx, cancel := context.WithTimeout(ctx, 2*Patience)
	defer cancel()
	cmd, err := m.command(ctx, host, argv...)
	if err != nil {
		return Output{Code: -1, Text: err.Error()}
	}
	said := &transcript{}
	cmd.Stdout, cmd.Stderr = stream{said, true}, stream{said, false}
	err = cmd.Run()
	text := said.all.String()
	// Also after a success, if the output was not read to its end.
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return Output{Code: -1, Text: text + err.Error()}
	}
	out := Output{Code: cmd.ProcessState.ExitCode(), Text: text, Result: said.out.String()}
	if out.Code == 0 && slices.Contains(argv, "json") {
		out.Text = out.Result // as a program reads it: a word about a wait is on standard error
	}
	return out
}

// command returns a command that ends with ctx, together with its whole process group: nsenter
// alone would leave its child.
func (m *Members) command(ctx context.Context, host string, argv ...string) (*exec.Cmd, error) {
	cmd, err := m.Lab.Exec(ctx, host, argv...)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = Patience // a busy machine's time to read the output
	return cmd, nil
}

// Process is a command that runs on a member of the lab beside the test. It is killed at the test's
// end.
type Process struct {
	m    *Members
	name string
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

// Start starts a command beside the test.
func (m *Members) Start(host string, argv ...string) *Process {
	m.Helper()
	cmd, err := m.command(m.Context(), host, argv...)
	if err != nil {
		m.Fatal(err)
	}
	r := &Process{m: m, name: strings.Join(argv, " "), cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = r, r
	if err := cmd.Start(); err != nil {
		m.Fatalf("%s on %s: %v", r.name, host, err)
	}
	go func() {
		_ = cmd.Wait()
		close(r.done)
	}()
	m.Cleanup(func() { <-r.done }) // its context has ended
	return r
}

// Write collects the output of the process.
func (r *Process) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

// Text returns the output of the process so far.
func (r *Process) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// AwaitText waits until the process has printed a text. It fails at once if the process ends
// without it.
func (r *Process) AwaitText(want string) {
	r.m.Helper()
	r.m.Await(strconv.Quote(want)+" from "+r.name, func() (string, bool) {
		ended := r.Ended() // before the text is read: an ended process prints no more
		text := r.Text()
		if ended && !strings.Contains(text, want) {
			r.m.Fatalf("%s ended without %q; it printed:\n%s", r.name, want, text)
		}
		return text, strings.Contains(text, want)
	})
}

// Ended reports whether the process has ended.
func (r *Process) Ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Stop asks the process to end and returns its result.
func (r *Process) Stop() Output {
	r.m.Helper()
	// The signal goes to the child: nsenter would end without its child's exit code.
	pid := r.cmd.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.m.Fatalf("stop %s: %v", r.name, err)
	}
	for _, child := range strings.Fields(string(text)) {
		n, _ := strconv.Atoi(child)
		if err := unix.Kill(n, unix.SIGTERM); err != nil && err != unix.ESRCH {
			r.m.Fatalf("stop %s: %v", r.name, err)
		}
	}
	return r.Wait()
}

// Wait waits until the process has ended and returns its result.
func (r *Process) Wait() Output {
	r.m.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		r.m.Fatalf("%s does not end; it printed:\n%s", r.name, r.Text())
	}
	return Output{Code: r.cmd.ProcessState.ExitCode(), Text: r.Text()}
}

// KillAgent kills the agent of a host as a crash would, and returns once it is gone.
func (m *Members) KillAgent(host string) { m.Helper(); m.killDaemon(host, "agent") }

// KillServer kills the server of a host as a crash would, and returns once it is gone.
func (m *Members) KillServer(host string) { m.Helper(); m.killDaemon(host, "server") }

func (m *Members) killDaemon(host, role string) {
	m.Helper()
	pid := strings.TrimSpace(m.Must(host, "cat", "/run/pando/"+role+".pid"))
	m.Must(host, "kill", "-9", pid)
	m.Await("the end of the "+role, func() (string, bool) {
		out := m.Run(host, "kill", "-0", pid)
		return out.Text, out.Code != 0
	})
}

// Left lists the remains of Pando on a host, by deploy/leaks: its processes, mounts, pins, cgroups
// and rules.
func (p *Pando) Left(host string) []string {
	p.Helper()
	return slices.DeleteFunc(p.leaks(host), func(line string) bool {
		return slices.Contains(p.there[host], line)
	})
}

func (p *Pando) leaks(host string) []string {
	p.Helper()
	root, err := moduleRoot()
	if err != nil {
		p.Fatal(err)
	}
	var left []string
	for line := range strings.Lines(p.Must(host, filepath.Join(root, "deploy", "leaks"))) {
		// Another lab may have made the folder of all labs meanwhile. Each lab looks for its own groups.
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, "/pando-lab") {
			left = append(left, line)
		}
	}
	return left
}
