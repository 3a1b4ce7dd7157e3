//go:build bench

// Package crowd measures a service of 500 instances on one host: the time from 1 instance to 500,
// the memory of a shim, the threads of the agent, the view of an instance, and a drain.
package crowd

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

const (
	rounds      = 5
	few         = 5                // instances of the small service
	views       = 200              // of each
	connections = 5000             // that drain
	settle      = 15 * time.Second // of a drain, before its cost is measured
	window      = 20 * time.Second // of the measurement
	patience    = 10 * time.Minute // for all instances, on a busy machine
	pause       = 20 * time.Millisecond
	ticks       = 100.0 // of the kernel's clock per second
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == bareRole {
		os.Exit(bareMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// crowd is one run.
type crowd struct {
	*labtest.Pando
	many    int // instances of the large service
	dial    func(address string) (net.Conn, error)
	program string
	samples map[string][]float64
	out     *csv.Writer
}

func (c *crowd) add(round int, series string, v float64) {
	c.samples[series] = append(c.samples[series], v)
	if err := c.out.Write([]string{strconv.Itoa(round), series, fmt.Sprintf("%.4f", v)}); err != nil {
		c.Fatal(err)
	}
}

const (
	grown, bared   = "1 → many (s)", "bare starts (s)"
	private, share = "private memory of a shim (MiB)", "proportional memory of a shim (MiB)"
	threads        = "threads of the agent per instance"
	viewFew        = "GET /v1/self beside few (ms)"
	viewMany       = "GET /v1/self beside many (ms)"
	draining       = "agent while connections drain (% of a core)"
)

func TestCrowd(t *testing.T) {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := &crowd{many: number(t, "INSTANCES", 500), samples: map[string][]float64{},
		out: csv.NewWriter(f)}
	_ = c.out.Write([]string{"round", "series", "value"})
	for round := range number(t, "ROUNDS", rounds) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			c.Pando = labtest.Up(t)
			c.round(round)
		})
	}
	c.out.Flush()
	c.publish(t)
}

// number returns a setting of the run.
func number(t *testing.T, name string, otherwise int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *crowd) round(round int) {
	c.dial = c.Dialer(c.Host())
	text, err := os.ReadFile(labtest.Build(c, "./bench/service/replicate/asker"))
	if err != nil {
		c.Fatal(err)
	}
	c.program = c.Write("asker", string(text))
	self, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	self = c.Write("bench", read(c, self))
	c.add(round, bared, c.number(c.Must(c.Host(), self, bareRole, strconv.Itoa(c.many), c.program)))
	small := c.Deploy(c.spec("few", few))
	c.views(round, small, viewFew)
	c.drain(round, small)
	large := c.Deploy(c.spec("many", 1))
	before := c.agentThreads()
	began := time.Now()
	c.Pando.Pando("scale", "many", strconv.Itoa(c.many))
	c.awaitAll(large)
	c.add(round, grown, time.Since(began).Seconds())
	c.add(round, threads, float64(c.agentThreads()-before)/float64(c.many))
	c.views(round, large, viewMany)
	c.shims(round)
	for _, series := range []string{bared, grown, private, share, threads, draining} {
		if all := c.samples[series]; len(all) > 0 {
			c.Logf("%s: %.3f", series, all[len(all)-1])
		}
	}
}

func (c *crowd) spec(name string, n int) string {
	return fmt.Sprintf("name: %s\ncommand: [./asker]\nports: [\"80:8080\"]\ndrain_max: 10m\n"+
		"scale: {min: %d, max: %d}\n", name, n, c.many+few)
}

// awaitAll waits until all instances of the large service are in rotation.
func (c *crowd) awaitAll(s *labtest.Service) {
	n := 0
	for end := time.Now().Add(patience); time.Now().Before(end); c.rest(pause) {
		if n = s.Status().InRotation; n == c.many {
			return
		}
	}
	c.Fatalf("%d instances are in rotation, want %d", n, c.many)
}

func (c *crowd) rest(d time.Duration) {
	if err := pando.Sleep(c.Context(), clock.Clock{}, d); err != nil {
		c.Fatal(err)
	}
}

// views measures the view of an instance.
func (c *crowd) views(round int, s *labtest.Service, series string) {
	at := c.taker(s).Endpoint
	for range views {
		body, err := c.post(at, "/describe")
		var v struct{ Took int64 }
		if err != nil || json.Unmarshal([]byte(body), &v) != nil {
			c.Fatalf("describe: %v %s", err, body)
		}
		c.add(round, series, float64(v.Took)/1e6)
	}
}

// taker returns an instance that takes flows.
func (c *crowd) taker(s *labtest.Service) pando.InstanceStatus {
	all := s.Status().Instances
	n := slices.IndexFunc(all, func(i pando.InstanceStatus) bool { return i.Phase.TakesFlows() })
	if n < 0 {
		c.Fatal("no instance takes flows")
	}
	return all[n]
}

func (c *crowd) post(address, path string) (string, error) {
	conn, err := c.dial(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n"+
		"Connection: close\r\n\r\n", path)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode/100 != 2 {
		err = errors.Join(err, errors.New(answer.Status))
	}
	return string(text), err
}

// drain opens connections to a service, drains all of its instances but one, and measures the agent
// while the connections stay.
func (c *crowd) drain(round int, s *labtest.Service) {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	for range connections {
		conn, err := c.dial(s.VIP + ":80")
		if err != nil {
			c.Fatal(err)
		}
		open = append(open, conn)
	}
	c.Pando.Pando("scale", s.Name, "1")
	s.Await("the others drain", func(st pando.ServiceStatus) bool { return st.InRotation == 1 })
	c.rest(settle)
	before, began := c.agentTime(), time.Now()
	c.rest(window)
	c.add(round, draining, 100*(c.agentTime()-before)/time.Since(began).Seconds())
}

// proc reads a file of the agent's folder in /proc.
func (c *crowd) proc(name string) string {
	pid := strings.TrimSpace(c.Must(c.Host(), "cat", "/run/pando/agent.pid"))
	return read(c, c.Path(c.Host(), "/proc/"+pid+"/"+name))
}

func (c *crowd) agentThreads() int {
	for line := range strings.Lines(c.proc("status")) {
		if n, ok := strings.CutPrefix(line, "Threads:"); ok {
			return int(c.number(n))
		}
	}
	c.Fatal("the agent has no number of threads")
	return 0
}

// agentTime returns the processor time of the agent in seconds.
func (c *crowd) agentTime() float64 {
	text := c.proc("stat")
	// proc(5) counts fields from 1; two are cut off.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	return (c.number(fields[14-3]) + c.number(fields[15-3])) / ticks
}

// shims notes the memory of the shims of all instances.
func (c *crowd) shims(round int) {
	records, _ := filepath.Glob(c.Path(c.Host(), "/run/pando/sandbox/*/slot.json"))
	for _, file := range records {
		var slot struct {
			Instance pando.InstanceID
			PID      int
		}
		if json.Unmarshal([]byte(read(c, file)), &slot) != nil || slot.Instance == "" {
			continue
		}
		at := c.Path(c.Host(), fmt.Sprintf("/proc/%d/smaps_rollup", slot.PID))
		kib := map[string]float64{}
		for line := range strings.Lines(read(c, at)) {
			if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
				kib[f[0]] = c.number(f[1])
			}
		}
		c.add(round, private, kib["Private_Dirty:"]/1024)
		c.add(round, share, kib["Pss:"]/1024)
	}
}

func (c *crowd) number(text string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		c.Fatal(err)
	}
	return v
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (c *crowd) median(series string) float64 {
	v := slices.Sorted(slices.Values(c.samples[series]))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

func (c *crowd) publish(t *testing.T) {
	verdict := map[bool]string{true: "held", false: "missed"}
	start, view := c.median(grown)/c.median(bared), c.median(viewMany)/c.median(viewFew)
	rows := []string{
		fmt.Sprintf("one service 1 → %d instances, against %[1]d bare starts | ≤ 2 × | | %.2f × "+
			"(%.1f s against %.1f s) | %s", c.many, start, c.median(grown), c.median(bared),
			verdict[start <= 2]),
		fmt.Sprintf("memory of an instance's shim, private | ≤ 3 MiB | | %.2f MiB (proportional %.2f) "+
			"| %s", c.median(private), c.median(share), verdict[c.median(private) <= 3]),
		fmt.Sprintf("threads of the agent per instance | 0 | | %.2f (%.0f more in all) | %s",
			c.median(threads), c.median(threads)*float64(c.many), verdict[c.median(threads) < 0.05]),
		fmt.Sprintf("GET /v1/self with %d fellows against %d, p50 | ≤ 1.5 × | | %.2f × (%.2f ms) | %s",
			c.many, few, view, c.median(viewMany), verdict[view <= 1.5]),
		fmt.Sprintf("agent while %d connections drain | ≤ 2 %% of a core | | %.2f %% | %s", connections,
			c.median(draining), verdict[c.median(draining) <= 2]),
	}
	for _, r := range rows {
		t.Log(r)
	}
	if os.Getenv("UNPUBLISHED") != "" {
		return
	}
	args := []string{"service/crowd", "--title", "A service of many instances", "--unit", "as named",
		"--log"}
	for _, r := range rows {
		args = append(args, "--row", r)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
