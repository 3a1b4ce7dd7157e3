//go:build bench

// Package throttled measures a service of four instances, one of them throttled to a tenth of its
// processor limit, by policy: score against literal HAVEN, hash, and HAProxy with leastconn. The
// load is open loop at 60 % of the measured capacity before the throttle. Each round measures every
// series.
package throttled

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
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
	load.Worker(t, p)
	sheet := sheet.New(t, ".")
	var all []series
	rate := 0.0 // requests per second
	deploy := func(name string, by pando.BalanceBy) *labtest.Service {
		s := p.Deploy(fmt.Sprintf("name: web-%s\ncommand: [./worker]\nenvironment: {WORK: \"%g\"}\n"+
			"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nscale: {min: %d, max: %d}\n"+
			"resources: {cpus: %g}\nbalance: {by: %s}\n", name, work, instances, instances, cpus, by))
		if rate == 0 {
			whole := load.Capacity(load.Dialer(p), s.VIP+":80", callers, measured)
			rate = 0.6 * whole
			t.Logf("the load is %.0f requests/s", rate)
		}
		throttle(t, s.Status().Instances[0].ID)
		return s
	}
	for _, by := range []pando.BalanceBy{pando.ByScore, pando.ByHaven, pando.ByHash} {
		all = append(all, series{string(by), deploy(string(by), by).VIP + ":80"})
	}
	// Its own instances: those of another series still work on requests that nothing waits for.
	peer := load.HAProxy(p, deploy("haproxy", pando.ByHash), 8000, "balance leastconn")
	all = append(all, series{"HAProxy leastconn", peer})
	dial := load.Dialer(p)
	for round := range rounds {
		for n := range all {
			way := all[(n+round)%len(all)]
			got := slices.DeleteFunc(load.Load{
				Dial: dial, Address: way.address, Rate: load.Always(rate),
				Lasts: warmUp + measured, Patience: patience,
			}.Run(), func(r load.Reply) bool { return r.Due < warmUp })
			sheet.Note(round, way.name+", p99 in ms", load.Quantile(got, .99))
			sheet.Note(round, way.name+", answers per second",
				float64(load.Answered(got))/measured.Seconds())
		}
	}
	more := sheet.Ratio("score, answers per second", "haven, answers per second")
	row(sheet, "score against literal HAVEN, answers per second", "≥ 5 ×", more, more >= 5)
	tail := sheet.Ratio("score, p99 in ms", "haven, p99 in ms")
	row(sheet, "score against literal HAVEN, p99", "≤ 0.25 ×", tail, tail <= 0.25)
	leastconn := sheet.Ratio("score, p99 in ms", "HAProxy leastconn, p99 in ms")
	row(sheet, "score against HAProxy leastconn, p99", "≤ 0.5 ×", leastconn, leastconn <= 0.5)
	sheet.Publish("One of four instances throttled", "ms or answers per second")
}

func row(sheet *sheet.Sheet, what, goal string, got float64, held bool) {
	sheet.Row(fmt.Sprintf("one of %d instances throttled 10 ×, open loop at 60 %%: %s (%d rounds)",
		instances, what, rounds), goal, "", fmt.Sprintf("%.2f ×", got), held)
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
			strings.Contains(string(cmd), "worker") {
			return true
		}
	}
	return false
}
