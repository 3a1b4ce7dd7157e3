package website

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/scratch"
	"pando.run/pando/driver/wall"
	"pando.run/pando/lab"
)

// stage is the place of the demo: a lab with a client and one host, which runs Pando.
type stage struct {
	lab   *lab.Lab
	pando string          // path of the binary
	dir   *scratch.Folder // all files of the demo
	api   *api.Client
}

// lowerWait bounds the removal of the stage, which an interrupt does not stop.
const lowerWait = 20 * time.Second

// prefix is the prefix of the folder.
const prefix = "pando-demo-website-"

// hostName is the only host of the lab, clientName the other machine.
const hostName, clientName = "demo1", "client"

// raise makes the lab and starts Pando on its host.
func raise(ctx context.Context, binary string) (_ *stage, err error) {
	if binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("find pando: %w (build it with `make build`)", err)
	}
	if err := scratch.Sweep(prefix, lowerDead); err != nil {
		return nil, err
	}
	s := &stage{pando: binary}
	if s.dir, err = scratch.Make(prefix); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lower())
		}
	}()
	s.lab, err = lab.Up(ctx,
		lab.Config{Hosts: 1, Name: "demo", Self: binary, Dir: labOf(s.dir.Path), Leashed: true})
	if err != nil {
		return nil, err
	}
	if _, err = s.do(ctx, "up", "--data-dir", s.dir.File("data")); err != nil {
		return nil, err
	}
	socket := fmt.Sprintf("/proc/%d/root/run/pando/api.sock", s.lab.Hosts[0].Pid)
	s.api = api.NewClient(socket, wall.Clock{})
	return s, nil
}

// do runs a pando command on the host, as an operator would, and returns its output.
func (s *stage) do(ctx context.Context, args ...string) (string, error) {
	return s.on(ctx, hostName, append([]string{s.pando}, args...)...)
}

// on runs a program on a host and returns its output. The error contains the standard error.
func (s *stage) on(ctx context.Context, host string, argv ...string) (string, error) {
	cmd, err := s.lab.Exec(ctx, host, argv...)
	if err != nil {
		return "", err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s",
			strings.Join(argv, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}

// offer runs the load generator on the client and passes each of its reports to report.
func (s *stage) offer(
	ctx context.Context, c load.Config, schedule string, report func(load.Report),
) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd, err := s.lab.Exec(ctx, clientName, self, "load", "--address", c.Address, "--schedule",
		schedule,
		"--connections", fmt.Sprint(c.Connections), "--fresh", fmt.Sprint(c.FreshShare), "--timeout",
		c.Timeout.String(), "--every", c.ReportEvery.String())
	if err != nil {
		return err
	}
	// nsenter waits for the generator. A signal to nsenter alone would leave the generator running.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the load: %w", err)
	}
	lines := json.NewDecoder(out)
	for {
		var r load.Report
		if err = lines.Decode(&r); err != nil {
			break
		}
		report(r)
	}
	ended := cmd.Wait()
	var code *exec.ExitError
	switch {
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read the load's reports: %w", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(ended, &code) && code.ExitCode() == 1: // failed requests appear in the checks
		return nil
	}
	return ended
}

// until polls the service until done returns true.
func (s *stage) until(ctx context.Context, name pando.ServiceKey, what string, within time.Duration,
	done func(pando.ServiceStatus) bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		st, err := s.api.Service(ctx, name)
		if err == nil && done(st) {
			return nil
		}
		if pando.Sleep(ctx, wall.Clock{}, look) != nil {
			return fmt.Errorf("%s: %w within %s: %d in rotation, %d in all",
				what, pando.ErrNotReady, within, st.InRotation, len(st.Instances))
		}
	}
}

// labOf returns the path of the lab's record in a folder.
func labOf(dir string) string { return filepath.Join(dir, "lab") }

// lowerDead removes the lab of a killed demo, if the demo made one.
func lowerDead(dir string) error {
	if err := lab.Sweep(labOf(dir)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lower removes the stage with everything that the demo made on it.
func (s *stage) lower() error {
	ctx, cancel := context.WithTimeout(context.Background(), lowerWait)
	defer cancel()
	var errs []error
	if s.lab != nil {
		_, err := s.do(ctx, "down", "--now", "--purge", "--data-dir", s.dir.File("data"))
		errs = append(errs, err, s.lab.Down())
	}
	return errors.Join(append(errs, s.dir.Remove())...)
}
