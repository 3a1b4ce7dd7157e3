//go:build bench

// Package idle measures the cost of Pando on an idle host. It reports the time of `pando up`, the
// memory and processor time of server and agent, and the size of the binary.
package idle

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando/lab/labtest"
)

const (
	rounds    = 5
	look      = 8 * time.Second // for the processor time of a round
	ticks     = 100.0           // ticks of the kernel's clock per second
	pageBytes = 4096
	mib       = 1 << 20
)

func TestIdle(t *testing.T) {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	samples := map[string][]float64{}
	note := func(round int, series string, v float64) {
		samples[series] = append(samples[series], v)
		if err := out.Write([]string{strconv.Itoa(round), series, fmt.Sprintf("%.4f", v)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Write([]string{"round", "series", "value"}); err != nil {
		t.Fatal(err)
	}
	p := labtest.UpWith(t, labtest.Options{Idle: true})
	for round := range rounds {
		began := time.Now()
		p.Up(p.Host())
		note(round, "up (s)", time.Since(began).Seconds())
		cpu, _ := usage(t, p)
		began = time.Now()
		<-time.After(look)
		later, memory := usage(t, p)
		note(round, "CPU (% of a core)", 100*(later-cpu)/time.Since(began).Seconds())
		note(round, "RSS (MiB)", memory/mib)
		p.Down(p.Host(), "--purge")
	}
	out.Flush()
	st, err := os.Stat(p.Bin)
	if err != nil {
		t.Fatal(err)
	}
	rss, cpu, up, binary := median(samples["RSS (MiB)"]), median(samples["CPU (% of a core)"]),
		median(samples["up (s)"]), float64(st.Size())/mib
	publish(t,
		fmt.Sprintf("idle: server + agent, resident memory | ≤ 90 MB | | %.0f MiB | %s",
			rss, held(rss*mib <= 90e6)),
		fmt.Sprintf("idle: server + agent, processor | ≤ 2 %% of a core | | %.2f %% | %s",
			cpu, held(cpu <= 2)),
		fmt.Sprintf("the binary | ≤ 40 MB | | %.1f MiB | %s", binary, held(binary*mib <= 40e6)),
		fmt.Sprintf("`pando up` → ready | ≤ 1.5 s | | %.2f s | %s", up, held(up <= 1.5)))
}

// usage returns the processor time in seconds and the resident memory in bytes of server and agent
// together.
func usage(t *testing.T, p *labtest.Pando) (cpu, memory float64) {
	t.Helper()
	for _, role := range []string{"server", "agent"} {
		pid := strings.TrimSpace(p.Must(p.Host(), "cat", "/run/pando/"+role+".pid"))
		b, err := os.ReadFile(p.Path(p.Host(), "/proc/"+pid+"/stat"))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		number := func(n int) float64 {
			// proc(5) counts fields from 1; two fields are cut off.
			v, err := strconv.ParseFloat(fields[n-3], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		cpu += (number(14) + number(15)) / ticks
		memory += number(24) * pageBytes
	}
	return cpu, memory
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func held(ok bool) string {
	if ok {
		return "held"
	}
	return "missed"
}

func publish(t *testing.T, rows ...string) {
	t.Helper()
	args := []string{"service/idle", "--title", "What Pando costs an idle host", "--unit",
		"s, % and MiB", "--log"}
	for _, r := range rows {
		args = append(args, "--row", r)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
