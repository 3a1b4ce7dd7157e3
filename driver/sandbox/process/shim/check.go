package shim

import (
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// approveConfigs runs the checks of the configs before the program starts, with its rights and limits. The
// first refusal ends the start. The caller holds the lock. The lock is free while a check runs, so
// that the shim can reap it.
func (s *shim) approveConfigs(p wire.Program) error {
	first := s.first
	defer func() { s.first = first }() // its thread is for the program
	for _, c := range p.Configs {
		if len(c.Check) == 0 {
			continue
		}
		s.first = nil
		if err := s.checkConfig(p, c); err != nil {
			return err
		}
		if s.barred {
			return fmt.Errorf("%w: another agent found the sandbox empty", pando.ErrConflict)
		}
	}
	return nil
}

// checkConfig runs the check of one config. It ends the processes that the check leaves.
func (s *shim) checkConfig(p wire.Program, c pando.ConfigFile) error {
	p.Argv = c.CheckOf(path.Join(pando.ConfigsFolder, c.Name))
	pid, out, ended, err := s.start(p, nil)
	if err != nil {
		return fmt.Errorf("run the check of the config %s: %w", c.Name, err)
	}
	defer out.Close()
	s.mu.Unlock()
	defer s.mu.Lock()
	alone := make(chan unix.WaitStatus, 1)
	go func() {
		status := <-ended
		_ = unix.Kill(-pid, unix.SIGKILL) // its children may hold its output; it leads a session
		alone <- status
	}()
	done, failed := outcome(out, alone), &pando.CheckFailed{Config: c.Name, Command: p.Argv}
	var r wire.Reply
	select {
	case r = <-done:
	case <-time.After(pando.ConfigCheckMax):
		failed.Late = true
		_ = unix.Kill(-pid, unix.SIGKILL)
		_ = out.SetReadDeadline(time.Unix(1, 0)) // a process outside its session may hold it
		r = <-done
	}
	if r.Code == 0 && !failed.Late {
		return nil
	}
	failed.Code, failed.Output = r.Code, r.Output
	return fmt.Errorf("the config %s is refused: %w", c.Name, failed)
}

// outcome sends the exit code of a command and the first part of its output.
func outcome(out *os.File, ended <-chan unix.WaitStatus) <-chan wire.Reply {
	done := make(chan wire.Reply, 1)
	go func() {
		output, err := io.ReadAll(io.LimitReader(out, wire.OutputBytesMax))
		r := wire.Reply{Output: output}
		if err != nil {
			r.Error = err.Error()
		}
		go func() { _, _ = io.Copy(io.Discard, out) }() // so that it does not wait for a reader
		status := <-ended
		if r.Code = status.ExitStatus(); status.Signaled() {
			r.Code = 128 + int(status.Signal())
		}
		done <- r
	}()
	return done
}
