package service

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// The colours of a page on a consoletest.Terminal.
const (
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

func some() []pando.ServiceStatus {
	web := pando.ServiceStatus{Instances: []pando.InstanceStatus{{Endpoint: "10.128.0.2:8080"}}}
	web.ServiceKey, web.Phase, web.Target = pando.DefaultService("website"), pando.ServiceServing, 1
	web.Instances[0].Instance = pando.Instance{
		ID: "website-7k3fq", Host: "host1", Revision: 1, Phase: pando.PhaseFailed,
		Reason: strings.Repeat("it did not answer \x1b[2J", 20), Since: consoletest.Noon,
	}
	quits := pando.ServiceStatus{Failures: 6,
		Problem: &pando.Decision{Reason: "it exited with 3\n12:00:00 deploy operator: all is well"}}
	quits.ServiceKey, quits.Phase, quits.Target = pando.DefaultService("quits"), pando.ServiceDegraded,
		2
	return []pando.ServiceStatus{web, quits}
}

func TestATerminalGetsNarrowTablesInColour(t *testing.T) {
	for _, c := range []struct {
		vars   map[string]string
		colour bool
	}{{nil, true}, {map[string]string{"NO_COLOR": "1"}, false},
		{map[string]string{"TERM": "dumb"}, false}} {
		env, shown := consoletest.Terminal(t, 80, c.vars)
		o := console.Open(&cli.Output{Env: env})
		page := cli.NewPage(env)
		instances(page, some(), consoletest.Noon.Add(time.Second))
		services(page, some())
		if err := o.Out.Print(page.Bytes()); err != nil {
			t.Fatal(err)
		}
		text := shown()
		got := strings.Contains(text, red+"failed"+plain) && strings.Contains(text, red+"degraded"+plain)
		if got != c.colour {
			t.Errorf("%v: colour is %v in\n%q", c.vars, got, text)
		}
		bare := strings.NewReplacer(red, "", plain, "").Replace(text)
		for line := range strings.Lines(bare) {
			if n := len([]rune(strings.TrimSpace(line))); n > 80 {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
		if strings.Contains(bare, "\x1b") || strings.Count(bare, "\n") != 6 {
			t.Errorf("an instance commands the consoletest.Terminal, or adds lines:\n%q", bare)
		}
	}
}

func TestAPipeGetsWholeTables(t *testing.T) {
	var b bytes.Buffer
	o := console.Open(&cli.Output{Env: cli.Env{Stdout: &b, Getenv: func(string) string { return "" }}})
	if err := o.Out.Show(nil, func(w io.Writer) { instances(w, some(), consoletest.Noon) }); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Contains(text, "\x1b") || strings.Contains(text, "…") ||
		!strings.Contains(text, "6 failures since the deploy") ||
		strings.Count(text, "it did not answer") != 20 {
		t.Errorf("got\n%q", text)
	}
}

func TestLogsOnATerminalCommandNothing(t *testing.T) {
	var b bytes.Buffer
	h := &cli.Harmless{To: &b}
	// ü arrives in two parts.
	for _, part := range []string{"a\x1b[31mred\r\n\tgr", "\xc3", "\xbcn\xff\x07\u202e\n"} {
		if n, err := h.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "a\uFFFD[31mred\n grün\uFFFD\uFFFD\uFFFD\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestFiguresHaveTheDigitsThatMatter(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 3: "3", 53.17831217195462: "53.18",
		1234.56: "1235", 123456.7: "123457", 0.012345: "0.01235", -2.5: "-2.500"} {
		if got := figure(v); got != want {
			t.Errorf("%g is printed as %q, want %q", v, got, want)
		}
	}
}
