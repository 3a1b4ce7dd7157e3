package operator

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// terminal opens a terminal with the given number of columns. It returns an environment on the
// terminal and a function that returns the displayed text.
func terminal(t *testing.T, columns uint16, vars map[string]string) (cli.Env, func() string) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { outer.Close() })
	if err := unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(inner.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	env := cli.Env{
		Stdout: inner, Stderr: inner, Getenv: func(name string) string { return vars[name] },
	}
	return env, func() string {
		inner.Close()
		var all []byte
		b := make([]byte, 4096)
		for {
			n, err := outer.Read(b) // Read fails with EIO after the inner end is closed
			all = append(all, b[:n]...)
			if err != nil {
				return strings.ReplaceAll(string(all), "\r\n", "\n")
			}
		}
	}
}

// The colours of a page on a terminal.
const (
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

func some() []pando.ServiceStatus {
	web := pando.ServiceStatus{Instances: []pando.InstanceStatus{{Endpoint: "10.128.0.2:8080"}}}
	web.ServiceKey, web.Phase, web.Target = pando.DefaultService("website"), pando.ServiceServing, 1
	web.Instances[0].Instance = pando.Instance{
		ID: "website-7k3fq", Host: "host1", Revision: 1, Phase: pando.PhaseFailed,
		Reason: strings.Repeat("it did not answer \x1b[2J", 20), Since: noon,
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
		env, shown := terminal(t, 80, c.vars)
		o := Open(&cli.Output{Env: env})
		page := cli.NewPage(env)
		instances(page, some(), noon.Add(time.Second))
		services(page, some())
		if err := o.out.Print(page.Bytes()); err != nil {
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
			t.Errorf("an instance commands the terminal, or adds lines:\n%q", bare)
		}
	}
}

func TestAPipeGetsWholeTables(t *testing.T) {
	var b bytes.Buffer
	o := Open(&cli.Output{Env: cli.Env{Stdout: &b, Getenv: func(string) string { return "" }}})
	if err := o.out.Show(nil, func(w io.Writer) { instances(w, some(), noon) }); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Contains(text, "\x1b") || strings.Contains(text, "…") ||
		!strings.Contains(text, "6 failures since the deploy") ||
		strings.Count(text, "it did not answer") != 20 {
		t.Errorf("got\n%q", text)
	}
}

func TestATerminalShowsEachChangeOfAWait(t *testing.T) {
	env, shown := terminal(t, 80, nil)
	o := Open(&cli.Output{Env: env})
	all := some()
	p := o.watching(all...)
	p.print(all[0])
	all[0].Instances[0].Phase, all[0].Instances[0].Reason = pando.PhaseReady, "after\x1b[1m 3ms"
	p.print(all[0])
	p.print(all[0])
	if text := shown(); strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, "website-7k3fq  revision 1  ready: after\uFFFD[1m 3ms") {
		t.Errorf("got\n%q", text)
	}
	o.out.Stdout = &bytes.Buffer{}
	if o.watching(all...) != nil {
		t.Error("a pipe gets progress")
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
