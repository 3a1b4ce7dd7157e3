package service

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func readings() (before, now []pando.InstanceUsage) {
	one := func(i pando.InstanceID, at time.Time, cpu float64) pando.InstanceUsage {
		return pando.InstanceUsage{Instance: i, Host: "host1", At: at, CPUSeconds: cpu, PIDs: new(int64(3)),
			MemoryBytes: new(int64(20 << 20)), Connections: 12, Born: consoletest.Noon, Failures: 2}
	}
	before = []pando.InstanceUsage{one("web-a", consoletest.Noon, 10), one("web-b", consoletest.Noon, 5),
		{Instance: "web-d", Missing: "away"}}
	later := consoletest.Noon.Add(2 * time.Second)
	now = []pando.InstanceUsage{one("web-a", later, 11), one("web-b", later, 4),
		one("web-c", later, 9), one("web-d", later, 1),
		{Instance: "web-e", Host: "host2", Born: consoletest.Noon, Missing: "host host2 does not answer"}}
	now[2].MemoryBytes, now[2].PIDs = nil, nil // a machine that counts neither
	now[0].Limits = pando.Resources{CPUs: 1.5, MemoryBytes: 64 << 20}
	return before, now
}

func TestStatsShowRatesAndLimits(t *testing.T) {
	var b bytes.Buffer
	stats(&b, rates(readings()), consoletest.Noon.Add(time.Minute))
	want := "INSTANCE HOST CPU MEMORY PIDS CONNS AGE FAILS\n" +
		"web-a host1 0.50/1.5 20M/64M 3 12 1m 2\n" +
		"web-b host1 0.00 20M 3 12 1m 2\n" + // its group began anew
		"web-c host1 - - - 12 1m 2\n" +
		"web-d host1 - 20M 3 12 1m 2\n" +
		"web-e host2 - - - - 1m host host2 does not answer"
	if got := consoletest.Squeeze(b.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.Reset()
	sick := rates(readings())[:1]
	sick[0].Health = pando.HealthOverloaded
	sick[0].Answers = []pando.ProbeAnswer{{At: consoletest.Noon, Probe: pando.ProbeHTTP},
		{At: consoletest.Noon, Probe: pando.ProbeHTTP, Error: "no answer\x1b in time"}}
	stats(&b, sick, consoletest.Noon)
	clock := consoletest.Noon.Local().Format("15:04:05")
	want = "web-a is overloaded\n" + clock + " answers its probe http\n" + clock + " no answer"
	if got := consoletest.Squeeze(b.String()); !strings.Contains(got, want) || strings.Contains(got, "\x1b") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.Reset()
	well := rates(readings())[:1]
	well[0].Health = pando.HealthReady
	well[0].Answers = []pando.ProbeAnswer{{At: consoletest.Noon, Probe: pando.ProbeHTTP, Error: "refused"},
		{At: consoletest.Noon, Probe: pando.ProbeHTTP}}
	if stats(&b, well, consoletest.Noon); strings.Contains(b.String(), "refused") {
		t.Errorf("the troubles of a start are shown as present:\n%s", b.String())
	}
	elsewhere := pando.InstanceUsage{Instance: "old-1", At: consoletest.Noon, Connections: 3}
	later := elsewhere
	later.At = consoletest.Noon.Add(time.Second)
	b.Reset()
	stats(&b, rates([]pando.InstanceUsage{elsewhere}, []pando.InstanceUsage{later}), consoletest.Noon)
	if got := consoletest.Squeeze(b.String()); !strings.Contains(got, "old-1 - - - - 3") {
		t.Errorf("a program that is not measured: %s", got)
	}
	b.Reset()
	if stats(&b, nil, consoletest.Noon); b.String() != "no instances\n" {
		t.Errorf("got %q", b.String())
	}
}

// A terminal of 80 columns holds every number, with the longest usual names.
func TestStatsFitATerminal(t *testing.T) {
	env, shown := consoletest.Terminal(t, 80, map[string]string{"NO_COLOR": "1"})
	all := rates(readings())
	all[0].Instance, all[0].Host = "website-shop-7k3fq", "host-with-name"
	page := cli.NewPage(env)
	stats(page, all[:4], consoletest.Noon.Add(3*time.Hour))
	if err := console.Open(&cli.Output{Env: env}).Out.Print(page.Bytes()); err != nil {
		t.Fatal(err)
	}
	if text := shown(); strings.Contains(text, "…") || !strings.Contains(text, "FAILS") {
		t.Errorf("cut:\n%s", text)
	}
}

func TestSizesHaveAFewDigits(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 999: "999B", 1000: "1.0K", 1024: "1.0K",
		10 << 10: "10K", 999 << 10: "999K", 1 << 20: "1.0M", 1536 << 20: "1.5G", 3 << 40: "3.0T",
		5000 << 40: "5000T"} {
		if got := console.Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// `stats` and `top` name the newest instances that got no connections, and `top` a metric that does
// not see the others.
func TestKeptConnectionsAreShown(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := pando.InstanceUsage{Instance: "web-1", Service: pando.DefaultService("web"), Connections: 72,
		Phase: pando.PhaseInRotation, Born: now.Add(-time.Hour)}
	two := one
	two.Instance, two.Connections, two.Born = "web-2", 0, now.Add(-time.Minute)
	usage := []pando.InstanceUsage{one, two}
	const want = "the 1 newest of 2 instances have 0 of 72 connections"
	var b strings.Builder
	stats(&b, rates(nil, usage), now)
	if !strings.Contains(b.String(), "web: "+want) {
		t.Errorf("stats prints %s", b.String())
	}
	b.Reset()
	top(&b, topView{Scale: pando.Scale{By: pando.ByConnections}, usage: usage, now: now})
	if !strings.Contains(b.String(), want) || !strings.Contains(b.String(), "counts only new connections") {
		t.Errorf("top prints %s", b.String())
	}
}
