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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/scratch"
	"pando.run/pando/driver/clock"
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

// hostName is the first host of the lab, with the server and the state. clientName is the machine
// of the visitors.
const hostName, clientName = "demo1", "client"

// store is the label of the host with the state.
const store = "role=store"

// raise makes the lab and starts Pando on its hosts.
func raise(ctx context.Context, binary string, hosts int) (_ *stage, err error) {
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
		lab.Config{Hosts: hosts, Name: "demo", Self: binary, Dir: labOf(s.dir.Path), Leashed: true})
	if err != nil {
		return nil, err
	}
	if _, err = s.do(ctx, "up", "--data-dir", s.data(hostName), "--label", store); err != nil {
		return nil, err
	}
	socket := fmt.Sprintf("/proc/%d/root/run/pando/api.sock", s.lab.Hosts[0].Pid)
	s.api = api.NewClient(socket, clock.Clock{})
	return s, s.join(ctx)
}

// data returns the data folder of a host.
func (s *stage) data(host string) string { return s.dir.File("data-" + host) }

// join makes the other hosts members of the cluster, at the same time.
func (s *stage) join(ctx context.Context) error {
	others := s.lab.Hosts[1:]
	errs := make([]error, len(others))
	var joining sync.WaitGroup
	for n, h := range others {
		text, err := s.do(ctx, "token", "-o", "json")
		if err != nil {
			return err
		}
		var is struct{ Join, Token string }
		if err := json.Unmarshal([]byte(text), &is); err != nil {
			return fmt.Errorf("read the output of pando token: %w", err)
		}
		joining.Go(func() {
			_, errs[n] = s.on(ctx, h.Name, s.pando, "up", "--data-dir", s.data(h.Name), "--join", is.Join,
				"--token", is.Token)
		})
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.await(ctx, joinWait, "all hosts are there", func() (string, bool) {
		all, err := s.api.Hosts(ctx)
		here := 0
		for _, h := range all {
			if h.State == pando.HostHere {
				here++
			}
		}
		return fmt.Sprintf("%d of %d are; %v", here, len(s.lab.Hosts), err), here == len(s.lab.Hosts)
	})
}

// joinWait is how long the hosts may take to appear in the cluster.
const joinWait = 20 * time.Second

// kill ends a host as a power cut does. Its cable is cut first: the kernel of this machine outlives
// the host, and would end the connections of its programs.
func (s *stage) kill(host string) error {
	var errs []error
	for _, other := range s.lab.List() {
		if other.Name != host {
			errs = append(errs, s.lab.Cut(host, other.Name))
		}
	}
	return errors.Join(append(errs, s.lab.Kill(host))...)
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
	return s.await(ctx, within, what, func() (string, bool) {
		st, err := s.api.Service(ctx, name)
		return fmt.Sprintf("%d in rotation, %d in all; %v", st.InRotation, len(st.Instances), err),
			err == nil && done(st)
	})
}

// await looks at a condition until it holds.
func (s *stage) await(
	ctx context.Context, within time.Duration, what string, holds func() (string, bool),
) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		seen, ok := holds()
		if ok {
			return nil
		}
		if pando.Sleep(ctx, clock.Clock{}, look) != nil {
			return fmt.Errorf("%s: %w within %s: %s", what, pando.ErrNotReady, within, seen)
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
		for _, h := range slices.Backward(s.lab.List()) { // the server last
			if h.Name != clientName {
				_, err := s.on(ctx, h.Name, s.pando, "down", "--now", "--purge", "--data-dir", s.data(h.Name))
				errs = append(errs, err)
			}
		}
		errs = append(errs, s.lab.Down())
	}
	return errors.Join(append(errs, s.dir.Remove())...)
}
