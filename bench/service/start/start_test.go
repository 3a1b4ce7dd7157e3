//go:build bench

// Package start measures the time from the start of a sandbox to the first byte of its program. It
// compares the process driver with its peers. bench/service/replicate measures replicate()
// through the whole of Pando. This package changes nothing on the machine's own network.
package start

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/process"
	"pando.run/pando/driver/sandbox/process/shim"
	"pando.run/pando/lab/labtest"
)

const (
	rounds   = 9
	each     = 5 // starts of a kind in a round
	patience = 10 * time.Second
	pollWait = 100 * time.Microsecond // between two tries to connect
)

// The test binary serves as the pando binary of its driver, so it can be a shim. The tests run in
// their own namespaces.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		os.Exit(shim.Main(os.Args[2:]))
	}
	if os.Getenv("BENCH_START") == "" {
		os.Exit(inOwnNamespaces())
	}
	if err := furnish(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func inOwnNamespaces() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "BENCH_START=inside")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL,
	}
	runtime.LockOSThread() // Pdeathsig refers to the death of this thread
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// furnish adds a host's address to the namespaces and removes the mount that crun 1.8 does not
// support.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	at, err := netlink.ParseAddr("192.0.2.1/32")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, at))
}

// samples holds milliseconds by series and round.
type samples map[string][][]float64

func (s samples) add(series string, round int, took time.Duration) {
	for len(s[series]) <= round {
		s[series] = append(s[series], nil)
	}
	s[series][round] = append(s[series][round], float64(took.Microseconds())/1e3)
}

func quantile(all []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s samples) quantile(series string, q float64) float64 {
	return quantile(slices.Concat(s[series]...), q)
}

// ratio returns the median over the rounds of the ratio of two series' medians in the same round.
func (s samples) ratio(a, b string) float64 {
	var all []float64
	for n := range s[a] {
		all = append(all, quantile(s[a][n], 0.5)/quantile(s[b][n], 0.5))
	}
	return quantile(all, 0.5)
}

// write writes the raw samples.
func (s samples) write(t *testing.T, order []string) {
	t.Helper()
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	rows := [][]string{{"round", "series", "value"}}
	for _, series := range order {
		for round, values := range s[series] {
			for _, v := range values {
				rows = append(rows, []string{strconv.Itoa(round), series, strconv.FormatFloat(v, 'f', 3, 64)})
			}
		}
	}
	if err := out.WriteAll(rows); err != nil {
		t.Fatal(err)
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	if err := pando.Sleep(t.Context(), clock.Clock{}, d); err != nil {
		t.Fatal(err)
	}
}

// firstByte connects until it receives an answer.
func firstByte(t *testing.T, address string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); pause(t, pollWait) {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			continue
		}
		_, err = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: echo\r\nConnection: close\r\n\r\n")
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		c.Close()
		if err == nil {
			return
		}
	}
	t.Fatalf("nobody answers at %s", address)
}

// The series, in the order of the plot.
const (
	plain   = "netns+veth+clone+exec"
	crun    = "crun"
	runc    = "runc"
	cold    = "sandbox, cold"
	pooled  = "sandbox, pool"
	imaged  = "image, pool"
	resumed = "sandbox, resume"
	removed = "remove"
)

func TestStart(t *testing.T) {
	s := samples{}
	program := install(t)
	for round := range rounds {
		for _, one := range []func(){
			func() { bare(t, s, round, program) },
			func() { container(t, s, round, crun, program) },
			func() { container(t, s, round, runc, program) },
			func() { sandboxes(t, s, round, program, 0, false) },
			func() { sandboxes(t, s, round, program, 2, false) },
			func() { sandboxes(t, s, round, program, 2, true) },
		} {
			one()
		}
		t.Logf("round %d: %s %.1f ms, %s %.1f", round, plain, quantile(s[plain][round], 0.5), pooled,
			quantile(s[pooled][round], 0.5))
	}
	s.write(t, []string{plain, crun, runc, cold, pooled, imaged, resumed, removed})
	publish(t, s)
}

// install copies the program to a place where a sandbox's user can run it.
func install(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(labtest.Build(t, "./lab/labtest/echo"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bench-start-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, layer, "echo")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Dir(program), 0o755),
		os.WriteFile(program, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return program
}

// load returns the load of the machine. A start with many scheduler turns suffers more from load
// than a start with one.
func load(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func publish(t *testing.T, s samples) {
	t.Helper()
	row := func(measure, series, against string) string {
		return fmt.Sprintf("%s | | | %.2f × %s (%.1f ms p50, %.1f p95; peer %.1f, %.1f) | stated",
			measure, s.ratio(series, against), against,
			s.quantile(series, 0.5), s.quantile(series, 0.95), s.quantile(against, 0.5), s.quantile(against,
				0.95))
	}
	args := []string{"service/start", "--title", "A sandbox alone, from its start to its first byte",
		"--unit", "ms", "--log"}
	for _, r := range []string{
		row("sandbox from the pool → first byte", pooled, plain),
		row("sandbox made on demand → first byte", cold, plain),
		row("paused sandbox, resumed → first byte", resumed, plain),
		row("sandbox from the pool → first byte", pooled, crun),
		row("sandbox of an image, from the pool → first byte", imaged, crun),
		row("sandbox of an image, from the pool → first byte", imaged, plain),
		row("sandbox from the pool → first byte", pooled, runc),
		row("remove, until its last process is gone", removed, plain),
		fmt.Sprintf("load average at the end of the run, others included | | | %s on %d cores | stated",
			load(t), runtime.NumCPU()),
	} {
		args = append(args, "--row", r)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
