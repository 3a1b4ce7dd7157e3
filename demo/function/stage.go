package function

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pando.run/pando/demo/scratch"
	"pando.run/pando/driver/sandbox/thread"
)

// stage is three network namespaces in a row. `in` sends, `unit` runs the functions on its devices
// in and out, `out` receives.
type stage struct {
	pando string          // path of the binary
	dir   *scratch.Folder // all files of the demo
	tag   string          // prefix of the namespaces
}

// prefix is the prefix of the folder and of the namespaces.
const prefix = "pando-demo-fn-"

// ends lists the namespaces of the sender, the units and the receiver.
var ends = []string{"in", "unit", "out"}

// lowerWait bounds the removal of the stage, which an interrupt does not stop.
const lowerWait = 20 * time.Second

// raise makes the namespaces and the links between them.
func raise(ctx context.Context, binary string) (_ *stage, err error) {
	s := &stage{}
	if s.pando, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	for _, program := range []string{s.pando, filepath.Join(filepath.Dir(s.pando), "pando-unit")} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("find the program that runs functions: %w (`make build` builds it when "+
				"cargo is there)", err)
		}
	}
	if err = scratch.Sweep(prefix, lower); err != nil {
		return nil, err
	}
	if s.dir, err = scratch.Make(prefix); err != nil {
		return nil, err
	}
	s.tag = tag(s.dir.Path)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lower())
		}
	}()
	for _, end := range ends {
		if _, err = tell(ctx, "ip", "netns", "add", s.tag+end); err != nil {
			return nil, err
		}
		// Otherwise the kernel's own multicast would pass through the functions.
		if _, err = s.on(ctx, end, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"); err != nil {
			return nil, err
		}
	}
	for _, end := range []string{"in", "out"} {
		link := "link add name " + end + " mtu 9000 type veth peer name eth0 mtu 9000 netns " + s.tag +
			end
		for _, args := range []string{"-n " + s.tag + "unit " + link,
			"-n " + s.tag + "unit link set " + end + " up", "-n " + s.tag + end + " link set eth0 up"} {
			if _, err = tell(ctx, "ip", strings.Fields(args)...); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// lower removes the stage.
func (s *stage) lower() error { return errors.Join(lower(s.dir.Path), s.dir.Remove()) }

// tag returns the prefix of the namespaces that belong to a folder.
func tag(dir string) string { return filepath.Base(dir) + "-" }

// lower removes the namespaces that belong to a folder.
func lower(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lowerWait)
	defer cancel()
	var errs []error
	for _, end := range ends {
		if _, err := os.Stat("/run/netns/" + tag(dir) + end); err == nil {
			_, err := tell(ctx, "ip", "netns", "del", tag(dir)+end)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tell runs a program and returns its output. The error contains the standard error.
func tell(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(said.String()))
	}
	return out, nil
}

// on runs a program in a namespace.
func (s *stage) on(ctx context.Context, end string, argv ...string) ([]byte, error) {
	return tell(ctx, "nsenter", append([]string{"--net=/run/netns/" + s.tag + end}, argv...)...)
}

// fn runs `pando fn` in a namespace.
func (s *stage) fn(ctx context.Context, end string, args ...string) ([]byte, error) {
	return s.on(ctx, end, append([]string{s.pando, "fn"}, args...)...)
}

// dropped returns the number of packets that a device dropped because the next queue was full. The
// kernel's queue for a busy processor has a limit.
func (s *stage) dropped(ctx context.Context, end, device string) (n uint64, err error) {
	out, err := s.on(ctx, end, "ip", "-j", "-s", "link", "show", "dev", device)
	if err != nil {
		return 0, err
	}
	var links []struct {
		Statistics struct {
			Tx struct{ Dropped uint64 } `json:"tx"`
		} `json:"stats64"`
	}
	if err := json.Unmarshal(out, &links); err != nil {
		return 0, fmt.Errorf("read the counters of %s: %w", device, err)
	}
	for _, l := range links {
		n += l.Statistics.Tx.Dropped
	}
	return n, nil
}

// places returns flags that separate the demo's units from other units of this machine.
func (s *stage) places() []string {
	return []string{"--run-dir", s.dir.File("run"), "--data-dir", s.dir.File("data")}
}

// unit runs a `pando fn` command on the demo's units.
func (s *stage) unit(ctx context.Context, args ...string) ([]byte, error) {
	return s.fn(ctx, "unit", append(args, s.places()...)...)
}

// process is a `pando fn` command that runs in the background.
type process struct {
	cmd  *exec.Cmd
	said *bytes.Buffer
	out  io.ReadCloser
	over context.CancelFunc // lets the thread of the process end
}

// start starts a `pando fn` command in a namespace. The caller waits for its end.
func (s *stage) start(end string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command("nsenter", append([]string{"--net=/run/netns/" + s.tag + end,
		s.pando, "fn"}, args...)...), said: &bytes.Buffer{}}
	p.cmd.Stderr = p.said
	// A process group of its own: Ctrl-C on the terminal ends the demo, and the demo ends its children
	// in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var err error
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	ended, over := context.WithCancel(context.Background())
	p.over = over
	started := make(chan error)
	thread.Go(func() { // the kernel ends the process with this thread
		started <- p.cmd.Start()
		<-ended.Done()
	})
	if err := <-started; err != nil {
		over()
		return nil, fmt.Errorf("start pando fn %s: %w", args[0], err)
	}
	return p, nil
}

// wait waits for the end of the process. The error contains the standard error.
func (p *process) wait() error {
	defer p.over()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(p.cmd.Args[2:5], " "), err,
			strings.TrimSpace(p.said.String()))
	}
	return nil
}

// end asks the process to end. The process may have ended already.
func (p *process) end() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// each calls take for every JSON value that the process prints, until the process ends or prints
// something else.
func each[T any](p *process, take func(T)) error {
	lines := json.NewDecoder(p.out)
	for {
		var v T
		if err := lines.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read %s: %w", p.cmd.Args[3], err)
		}
		take(v)
	}
}
