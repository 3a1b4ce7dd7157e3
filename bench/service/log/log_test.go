//go:build bench

// Package log measures the cost of merging a thousand new lines into a log of the service's state,
// depending on the length of that log.
package log

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/store/bolt"
	"pando.run/pando/state"
)

const (
	rounds  = 40
	perStep = 100_000 // lines per append while the log grows
	merged  = 1000    // lines that a branch has and main has not
)

// lengths of the log in lines of 80 bytes.
var lengths = []int{10_000, 100_000, 1_000_000, 10_000_000}

var (
	web   = pando.DefaultService("web")
	typed = map[string]pando.StateType{"access.log": pando.StateLog}
)

// host is a state in a file, with the main that its registry would have.
type host struct {
	*testing.T
	objects *bolt.Store
	repo    *state.Repo
	main    pando.ObjectID
	names   int
}

// TestLog first grows every log to its length, then merges into all of them in turn.
func TestLog(t *testing.T) {
	var hosts []*host
	for _, n := range lengths {
		objects, err := bolt.Open(filepath.Join(t.TempDir(), "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer objects.Close()
		h := &host{T: t, objects: objects, repo: state.Open(objects, web, typed)}
		h.grow(n)
		hosts = append(hosts, h)
	}
	millis, written := map[int][]float64{}, map[int][]float64{}
	for round := range rounds + 1 {
		for k, h := range hosts {
			ms, bytes := h.merge()
			// The first merge brings the end of the log into memory. In a service that writes, it already is
			// there.
			if round > 0 {
				millis[lengths[k]] = append(millis[lengths[k]], ms)
				written[lengths[k]] = append(written[lengths[k]], bytes)
			}
		}
	}
	publish(t, millis, written)
}

func (h *host) ok(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func at() time.Time { return time.Unix(1_800_000_000, 0).UTC() }

func (h *host) born() *state.Branch {
	h.Helper()
	h.names++
	b, err := h.repo.Born(h.Context(), pando.InstanceID(fmt.Sprintf("web-%d", h.names)), h.main)
	h.ok(err)
	return b
}

// lines returns n different lines of 80 bytes.
func lines(n int) []byte {
	var b bytes.Buffer
	for k := range n {
		fmt.Fprintf(&b, "web-7k3q-%010d 2026-11-21T10:00:00.000000000Z GET /a/page/of/the/site %010d\n",
			k, k)
	}
	return b.Bytes()
}

func (h *host) grow(n int) {
	h.Helper()
	b := h.born()
	step := min(n, perStep)
	text := lines(step)
	for left := n; left > 0; left -= step {
		h.ok(b.Patch("access.log", text))
		_, err := b.Commit(h.Context(), "grow", at())
		h.ok(err)
	}
	to, _, err := b.Merge(h.Context(), h.main, at())
	h.ok(err)
	h.main = to
	h.ok(b.Pushed(to))
}

// merge lets two branches append to the log and pushes one of them. It measures the merge of the
// other: milliseconds, and bytes written to the file.
func (h *host) merge() (ms, bytes float64) {
	h.Helper()
	ctx := h.Context()
	other, b := h.born(), h.born()
	h.ok(other.Patch("access.log", lines(10)))
	h.ok(b.Patch("access.log", lines(merged)))
	for _, one := range []*state.Branch{other, b} {
		_, err := one.Commit(ctx, "lines", at())
		h.ok(err)
	}
	to, _, err := other.Merge(ctx, h.main, at())
	h.ok(err)
	h.main = to
	h.ok(other.Pushed(to))
	before, begin := h.wrote(), time.Now()
	to, result, err := b.Merge(ctx, h.main, at())
	ms = float64(time.Since(begin)) / float64(time.Millisecond)
	bytes = float64(h.wrote() - before)
	h.ok(err)
	if result.Merged != 1 {
		h.Fatalf("the merge did %+v", result)
	}
	h.main = to
	h.ok(b.Pushed(to))
	h.ok(other.Discard(ctx))
	h.ok(b.Discard(ctx))
	return ms, bytes
}

// wrote returns the number of bytes that this process has passed to write calls so far.
func (h *host) wrote() (n int) {
	h.Helper()
	text, err := os.ReadFile("/proc/self/io")
	h.ok(err)
	var read int
	_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d", &read, &n)
	h.ok(err)
	return n
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func publish(t *testing.T, millis, written map[int][]float64) {
	t.Helper()
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	_ = out.Write([]string{"round", "series", "x", "value"})
	worst := 0.0
	for _, n := range lengths {
		for round := range rounds {
			_ = out.Write([]string{fmt.Sprint(round), "time, ms", fmt.Sprint(n), fmt.Sprintf("%.3f",
				millis[n][round])})
			_ = out.Write([]string{fmt.Sprint(round), "written, 100 KB", fmt.Sprint(n), fmt.Sprintf("%.3f",
				written[n][round]/1e5)})
			worst = max(worst, written[n][round])
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		t.Fatal(err)
	}
	short, long := median(millis[lengths[0]]), median(millis[lengths[len(lengths)-1]])
	verdict := map[bool]string{true: "held", false: "missed"}
	rows := []string{
		fmt.Sprintf("1,000 log lines merged onto a log of 10 million: written | ≤ 1 MB | | %.2f MB, at "+
			"most %.2f MB at any length | %s",
			median(written[lengths[len(lengths)-1]])/1e6, worst/1e6, verdict[worst <= 1e6]),
		fmt.Sprintf("the same: time, against a log of 10 thousand | independent of the length (≤ 1.5 "+
			"×) | | %.2f × (%.1f ms against %.1f ms, medians of %d) | %s",
			long/short, long, short, rounds, verdict[long <= 1.5*short]),
	}
	cmd := exec.Command("../../publish", "service/log", "--title", "1,000 lines merged onto a log",
		"--unit", "per merge", "--x", "lines in the log", "--row", rows[0], "--row", rows[1])
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, text)
	}
	for _, r := range rows {
		t.Log(r)
	}
}
