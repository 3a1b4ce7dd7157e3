//go:build bench

// Package throttled measures a service of four instances, one of them throttled to a tenth of its
// processor limit, by policy: score against literal HAVEN, hash, and HAProxy with leastconn. The
// load is open loop at 60 % of the measured capacity before the throttle. Each round measures every
// series.
package throttled

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

const (
	rounds    = 5
	warmUp    = 2 * time.Second
	measured  = 6 * time.Second
	work      = 2.0  // milliseconds of a request
	cpus      = 0.25 // limit of an instance
	instances = 4
	callers   = 16 // at once, to measure the capacity
	// A request without an answer counts as this long.
	patience = 2 * time.Second
)

// series is one way to the instances.
type series struct{ name, address string }

func TestThrottled(t *testing.T) {
	p := labtest.Up(t)
	server := filepath.Join(p.Dir, "server")
	build := exec.Command("go", "build", "-trimpath", "-o", server, "./server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	var all []series
	rate := 0.0 // requests per second
	deploy := func(name string, by pando.BalanceBy) *labtest.Service {
		s := p.Deploy(fmt.Sprintf("name: web-%s\ncommand: [./server]\nenvironment: {WORK: \"%g\"}\n"+
			"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nscale: {min: %d, max: %d}\n"+
			"resources: {cpus: %g}\nbalance: {by: %s}\n", name, work, instances, instances, cpus, by))
		if rate == 0 {
			rate = 0.6 * capacity(p, s.VIP+":80")
			t.Logf("the load is %.0f requests/s", rate)
		}
		throttle(t, s.Status().Instances[0].ID)
		return s
	}
	for _, by := range []pando.BalanceBy{pando.ByScore, pando.ByHaven, pando.ByHash} {
		all = append(all, series{string(by), deploy(string(by), by).VIP + ":80"})
	}
	// Its own instances: those of another series still work on requests that nothing waits for.
	all = append(all, series{"HAProxy leastconn", haproxy(p, deploy("haproxy", pando.ByHash))})
	seconds := map[string][]float64{}
	served := map[string][]float64{}
	out := results(t)
	for round := range rounds {
		for _, s := range all {
			times, answers := load(p, s.address, rate)
			slices.Sort(times)
			p99 := times[len(times)*99/100]
			out(strconv.Itoa(round), s.name+", p99 in ms", fmt.Sprintf("%.2f", 1000*p99))
			out(strconv.Itoa(round), s.name+", answers per second", fmt.Sprintf("%.1f", answers))
			seconds[s.name] = append(seconds[s.name], p99)
			served[s.name] = append(served[s.name], answers)
			t.Logf("round %d, %s: p99 %.1f ms, %.1f answers/s", round, s.name, 1000*p99, answers)
		}
	}
	more := median(served["score"]) / median(served["haven"])
	tail := median(seconds["score"]) / median(seconds["haven"])
	peer := median(seconds["score"]) / median(seconds["HAProxy leastconn"])
	publish(t,
		row("score against literal HAVEN, answers per second", "≥ 5 ×", more, more >= 5),
		row("score against literal HAVEN, p99", "≤ 0.25 ×", tail, tail <= 0.25),
		row("score against HAProxy leastconn, p99", "≤ 0.5 ×", peer, peer <= 0.5))
}

func row(what, goal string, got float64, held bool) string {
	verdict := map[bool]string{true: "held", false: "missed"}[held]
	return fmt.Sprintf("one of %d instances throttled 10 ×, open loop at 60 %%: %s (%d rounds) | "+
		"%s | | %.2f × | %s", instances, what, rounds, goal, got, verdict)
}

// throttle lowers the processor limit of a running instance to a tenth, in its own control group.
func throttle(t *testing.T, i pando.InstanceID) {
	t.Helper()
	done := false
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" || !strings.Contains(path, "pando") ||
			!holds(path, i) {
			return nil
		}
		dir := filepath.Dir(path)
		const period = "100000"
		quota := strconv.Itoa(int(100_000 * cpus / 10))
		if os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte(quota), 0) == nil {
			done = os.WriteFile(filepath.Join(dir, "cpu.cfs_period_us"), []byte(period), 0) == nil
		} else if os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(quota+" "+period), 0) == nil {
			done = true
		}
		return nil
	})
	if !done {
		t.Fatalf("no control group of %s was found", i)
	}
}

// holds reports whether a control group has the program of an instance.
func holds(procs string, i pando.InstanceID) bool {
	text, _ := os.ReadFile(procs)
	for pid := range strings.FieldsSeq(string(text)) {
		env, _ := os.ReadFile("/proc/" + pid + "/environ")
		cmd, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if strings.Contains(string(env), "PANDO_INSTANCE="+string(i)+"\x00") &&
			strings.Contains(string(cmd), "server") {
			return true
		}
	}
	return false
}

// haproxy balances the instances of a service by leastconn and returns its address.
func haproxy(p *labtest.Pando, s *labtest.Service) string {
	p.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "global\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 2s\n"+
		" timeout client 10s\n timeout server 10s\nlisten web\n bind :8000\n balance leastconn\n")
	st := s.Status()
	for n, i := range st.Instances {
		host, _, _ := net.SplitHostPort(i.Endpoint)
		fmt.Fprintf(&b, " server s%d %s:8080\n", n, host)
	}
	proxy := p.Start(p.Host(), "/usr/sbin/haproxy", "-db", "-f", p.Write("haproxy.cfg", b.String()))
	hosts, err := p.API(p.Host()).Hosts(p.Context())
	if err != nil || len(hosts) != 1 {
		p.Fatalf("%d hosts: %v", len(hosts), err)
	}
	address := net.JoinHostPort(hosts[0].Address.String(), "8000")
	p.Await("HAProxy to answer", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--max-time", "2", "http://"+address+"/")
		return out.Text + proxy.Text(), out.Code == 0
	})
	return address
}

// capacity returns the answers per second of a service under closed loops without a rest.
func capacity(p *labtest.Pando, address string) float64 {
	dial := p.Dialer(labtest.Client)
	var answers atomic.Int64
	var calling sync.WaitGroup
	begun := time.Now()
	for range callers {
		calling.Go(func() {
			for time.Since(begun) < measured {
				if ask(dial, address) {
					answers.Add(1)
				}
			}
		})
	}
	calling.Wait()
	return float64(answers.Load()) / time.Since(begun).Seconds()
}

// load offers requests at random moments and returns the times of those after the warm-up, and the
// answers per second.
func load(
	p *labtest.Pando, address string, rate float64,
) (seconds []float64, perSecond float64) {
	dial := p.Dialer(labtest.Client)
	random := rand.New(rand.NewPCG(7, 7))
	begun := time.Now()
	var mu sync.Mutex
	var calling sync.WaitGroup
	answers := 0
	for due := begun; due.Sub(begun) < warmUp+measured; {
		due = due.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		<-time.After(time.Until(due))
		calling.Go(func() {
			ok := ask(dial, address)
			took := min(time.Since(due), patience)
			if due.Sub(begun) < warmUp {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seconds = append(seconds, took.Seconds())
			if ok && took < patience {
				answers++
			}
		})
	}
	calling.Wait()
	return seconds, float64(answers) / measured.Seconds()
}

// ask sends one request on a new connection.
func ask(dial func(string) (net.Conn, error), address string) bool {
	conn, err := dial(address)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err == nil && answer.StatusCode == http.StatusOK
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// results opens the file of raw samples and returns its writer.
func results(t *testing.T) func(cells ...string) {
	t.Helper()
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	out := csv.NewWriter(f)
	write := func(cells ...string) {
		if err := out.Write(cells); err != nil {
			t.Fatal(err)
		}
		out.Flush()
	}
	t.Cleanup(func() { f.Close() })
	write("round", "series", "value")
	return write
}

func publish(t *testing.T, rows ...string) {
	t.Helper()
	args := []string{"balance/throttled", "--title", "One of four instances throttled", "--unit",
		"ms or answers per second"}
	for _, r := range rows {
		args = append(args, "--row", r)
	}
	if os.Getenv("PANDO_BENCH_DRY") != "" {
		t.Logf("not published: %q", args)
		return
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
