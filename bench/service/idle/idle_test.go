//go:build bench

// Package idle measures the cost of Pando on an idle host. It reports the time of `pando up`, the
// memory and processor time of server and agent, the size of the binary, and the memory of the
// kernel's maps with ten services.
package idle

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	services  = 10 // for the memory of the maps
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
	note(rounds-1, "maps (MB)", maps(t, p)/1e6)
	out.Flush()
	st, err := os.Stat(p.Bin)
	if err != nil {
		t.Fatal(err)
	}
	kernel := median(samples["maps (MB)"])
	rss, cpu, up, binary := median(samples["RSS (MiB)"]), median(samples["CPU (% of a core)"]),
		median(samples["up (s)"]), float64(st.Size())/mib
	publish(t,
		fmt.Sprintf("idle: server + agent, resident memory | ≤ 90 MB | | %.0f MiB | %s",
			rss, held(rss*mib <= 90e6)),
		fmt.Sprintf("idle: server + agent, processor | ≤ 2 %% of a core | | %.2f %% | %s",
			cpu, held(cpu <= 2)),
		fmt.Sprintf("%d services by score: the kernel's memory for the maps | ≤ 40 MB | | %.1f MB | %s",
			services, kernel, held(kernel <= 40)),
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

// maps returns the bytes of the kernel's memory for the maps of the agent with ten services.
func maps(t *testing.T, p *labtest.Pando) float64 {
	t.Helper()
	p.Up(p.Host())
	for n := range services {
		p.Deploy(labtest.Echo(fmt.Sprintf("web-%d", n), "balance: {by: score}")).AwaitInstances(1)
	}
	pid := strings.TrimSpace(p.Must(p.Host(), "cat", "/run/pando/agent.pid"))
	folder := p.Path(p.Host(), "/proc/"+pid+"/fdinfo")
	all, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	bytes := map[string]float64{} // by map_id: an agent may hold several descriptors of one map
	for _, one := range all {
		text, err := os.ReadFile(filepath.Join(folder, one.Name()))
		if err != nil {
			continue // it is closed by now
		}
		of := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			of[name] = strings.TrimSpace(value)
		}
		if id := of["map_id"]; id != "" {
			if bytes[id], err = strconv.ParseFloat(of["memlock"], 64); err != nil {
				t.Fatalf("map %s: %v", id, err)
			}
		}
	}
	sum := 0.0
	for _, n := range bytes {
		sum += n
	}
	t.Logf("%d maps take %.0f bytes", len(bytes), sum)
	if sum == 0 {
		t.Fatal("the agent holds no map")
	}
	return sum
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
