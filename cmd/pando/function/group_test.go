package function

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// runLine runs `pando fn run` with some arguments.
func runLine(t *testing.T, args ...string) error {
	t.Helper()
	c := unit{cli.Env{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}}.run()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	return c.ExecuteContext(t.Context())
}

func groupOf(t *testing.T, more ...string) error {
	t.Helper()
	return runLine(t, append([]string{"nat.wasm", "--iface", "lo", "--units", "1..2"}, more...)...)
}

// Units of a group receive packets from steering through AF_PACKET. AF_XDP is
// refused before anything is created.
func TestAGroupRefusesAFXDP(t *testing.T) {
	err := groupOf(t, "--port", "xdp")
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "leave out --units") {
		t.Fatalf("got %v", err)
	}
}

func TestWrongValuesOfAGroupAreUsageErrors(t *testing.T) {
	for _, c := range []struct {
		flags []string
		code  int
		want  string
	}{
		{[]string{"--units", "0"}, 2, "LEAST..MOST"},
		{[]string{"--units", "3..2"}, 2, "LEAST..MOST"},
		{[]string{"--ports", "7"}, 2, "FIRST-LAST"},
		{[]string{"--unit-memory-mib", "5"}, 2, "16 or more"},
		{[]string{"--unit-cpus", "NaN"}, 2, "0.01 to 1024"},
		{[]string{"--unit-capacity", "20X"}, 2, "for example 20M"},
		{[]string{"--durability", "disk"}, 2, `none or log, got "disk"`},
		{[]string{"--hang-ms", "300"}, 2, "--hang-ms is for a single unit"},
		{[]string{"--out", "lo"}, 3, "leave --out away"},
		{[]string{"--durability", "log", "--exchange", "udp"}, 3, "leave out --exchange"},
	} {
		err := groupOf(t, c.flags...)
		if cli.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: exit code %d, want %d and %q: %v", c.flags, cli.CodeOf(err), c.code, c.want, err)
		}
	}
}

func TestASingleUnitHasNoFlagsOfAGroup(t *testing.T) {
	err := runLine(t, "nat.wasm", "--iface", "lo", "--gap", "1ms")
	if cli.CodeOf(err) != 2 || !strings.Contains(err.Error(), "--gap is for a group") {
		t.Errorf("got %v", err)
	}
	if err := runLine(t, "nat.wasm"); cli.CodeOf(err) != 2 ||
		!strings.Contains(err.Error(), "--iface is missing") {
		t.Errorf("got %v", err)
	}
}

func TestAGroupPassesFlagsToItsUnits(t *testing.T) {
	var g groupFlags
	c := &cobra.Command{}
	add(c, unitRows...)
	add(c, chainRows...)
	g.add(c)
	line := []string{
		"--units", "2..4", "--iface", "a", "--out", "b", "--set", "x=1", "--set", "y=2", "--strict-rules",
		"-d", "--flows-max=9", "--ports", "10-20", "--unit-capacity", "20M", "--durability", "log",
	}
	if err := c.ParseFlags(line); err != nil {
		t.Fatal(err)
	}
	got, err := g.config(c.Flags(), []string{"x/nat.wasm", "ids.wasm"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"--flows-max=9", "--set=x=1", "--set=y=2", "--strict-rules"}
	if !slices.Equal(got.Flags, want) {
		t.Errorf("a unit gets %q, want %q", got.Flags, want)
	}
	if got.Name != "nat-ids" || got.Least != 2 || got.Most != 4 || got.In != "a" || got.Out != "b" ||
		!got.Log ||
		got.Ports != [2]int{10, 20} || got.UnitBits != 20_000_000 || !got.Limited ||
		got.RunDir != runFolder {
		t.Errorf("got %+v", got)
	}
	again := arguments(c.Flags(), "detach")
	if !slices.Contains(again, "--units=2..4") || slices.Contains(again, "--detach") {
		t.Errorf("the detached group gets %q", again)
	}
}

// A single unit gets exactly the flags of the command line; pando-unit fills in the rest.
func TestASingleUnitGetsTheFlagsOfItsCommandLine(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 4\n"
	if err := os.WriteFile(dir+"/"+binary, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	c := unit{cli.Env{Stdout: &out}}.run()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs([]string{"nat.wasm", "--iface", "lan", "--set", "a=1", "ids.wasm", "--set", "b=2", "-d",
		"--restart=false"})
	if err := c.ExecuteContext(t.Context()); cli.CodeOf(err) != 4 {
		t.Errorf("got %v, want the exit code of pando-unit", err)
	}
	want := "run\nnat.wasm\nids.wasm\n--detach\n--iface=lan\n--set=a=1\n--set=b=2\n"
	if out.String() != want {
		t.Errorf("pando-unit gets %q, want %q", out.String(), want)
	}
}
