package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pando.run/pando/cmd/pando/cli"
)

// said holds the output of one command line.
type said struct {
	code     int
	out, err string
}

// invoke runs one command line in this process, against the API at a socket.
func invoke(socket string, args ...string) said {
	var out, errs bytes.Buffer
	code := run(args, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string { return map[string]string{"PANDO_API": socket}[name] },
	})
	return said{code, out.String(), errs.String()}
}

// A full disk behind standard output is an error, because the output is lost.
func TestOutputThatIsNotWrittenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"version", "-o", "json"}, {"spec", "schema"}} {
		var errs bytes.Buffer
		code := run(args, cli.Env{Stdout: full, Stderr: &errs, Getenv: func(string) string { return "" }})
		if code != 1 || !strings.Contains(
			errs.String(), "the output is incomplete: write /dev/full: no space left on device") {
			t.Errorf("%v: code %d, %q", args, code, errs.String())
		}
	}
}

// walk visits every visible command.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			walk(sub, visit)
		}
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	root, n := rootCommand(cli.Env{Getenv: func(string) string { return "" }}), 0
	walk(root, func(c *cobra.Command) {
		n++
		path := c.CommandPath()
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: no short description, or no example", path)
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") ||
				!strings.Contains(line, path) && c != root && !c.HasSubCommands() {
				t.Errorf("%s: the example %q is not one of it", path, line)
			}
		}
		if c.DisableFlagParsing {
			return // pando-unit or pando-mem prints the help
		}
		got := invoke("", append(strings.Fields(path)[1:], "--help")...)
		if got.code != 0 || !strings.Contains(got.out, "Examples:") {
			t.Errorf("%s --help: code %d\n%s%s", path, got.code, got.out, got.err)
		}
	})
	if root.PersistentFlags().HasFlags() {
		t.Errorf("a global flag, which some commands ignore:\n%s", root.PersistentFlags().FlagUsages())
	}
	if n < 20 {
		t.Errorf("only %d commands were visited", n)
	}
}

// The style note of CONTRIBUTING.md holds for every short help and every flag.
func TestHelpIsShortAndImperative(t *testing.T) {
	check := func(name, text string) {
		if len([]rune(text)) > 72 || strings.HasSuffix(text, ".") ||
			text != "" && !unicode.IsLower([]rune(text)[0]) &&
				!unicode.IsUpper([]rune(text)[1]) {
			t.Errorf("%s: %q is no short help: at most 72 characters, lower case, no full stop", name, text)
		}
	}
	walk(rootCommand(cli.Env{Getenv: func(string) string { return "" }}), func(c *cobra.Command) {
		check(c.CommandPath(), c.Short)
		if len([]rune(c.Short)) > 60 {
			t.Errorf("%s: %q has more than 60 characters", c.CommandPath(), c.Short)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { check(c.CommandPath()+" --"+f.Name, f.Usage) })
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len([]rune(line)) > 110 {
				t.Errorf("%s: a line of its help has %d columns: %s", c.CommandPath(), len([]rune(line)), line)
			}
		}
	})
}

// A command that prints no result refuses -o, instead of ignoring it.
func TestOutputIsAFlagOfCommandsThatPrintAResult(t *testing.T) {
	const printing = "ps,status,stats,why,watch,scale,rm,deploy,diff,history,rollback,state log," +
		"rollout status,rollout pause,rollout resume,rollout undo," +
		"hosts,hosts rm,spec check,spec schema,spec show,doctor,version,lab up,lab ls,up,down," +
		"restart,token"
	results := map[string]bool{"logs": false, "exec": false, "lab exec": false,
		"lab down": false, "server": false, "agent": false}
	for line := range strings.SplitSeq(printing, ",") {
		results[line] = true
	}
	for line, want := range results {
		c, _, err := rootCommand(cli.Env{Getenv: func(string) string { return "" }}).
			Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		got := c.Flags().Lookup("output") != nil || c.InheritedFlags().Lookup("output") != nil
		if got != want {
			t.Errorf("pando %s has -o: %v, want %v", line, got, want)
		}
	}
	got := invoke("", "-o", "json", "version")
	if got.code != 0 || !strings.Contains(got.out, `"version"`) {
		t.Errorf("-o before the command: %+v", got)
	}
}

// Every flag for a length of time has days.
func TestEveryDurationHasDays(t *testing.T) {
	n := 0
	walk(rootCommand(cli.Env{Getenv: func(string) string { return "" }}), func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			n++
			before := f.Value.String()
			if err := f.Value.Set("1d12h"); err != nil || f.Value.String() != "1d12h" {
				t.Errorf("%s --%s 1d12h: %q, %v", c.CommandPath(), f.Name, f.Value, err)
			}
			if err := f.Value.Set(before); err != nil {
				t.Errorf("%s --%s: its default %q: %v", c.CommandPath(), f.Name, before, err)
			}
		})
	})
	if n < 10 {
		t.Errorf("%d flags have a duration", n)
	}
}

func TestHelpNamesTheExitCodes(t *testing.T) {
	for _, k := range cli.Codes {
		if !strings.Contains(invoke("", "--help").out, fmt.Sprintf("%d %s", k.Code, k.Name)) {
			t.Errorf("the help does not name %d %s", k.Code, k.Name)
		}
	}
}

func TestWrongCommandLinesSayWhatWouldBeRight(t *testing.T) {
	for line, want := range map[string]string{
		"depoy x":                `did you mean "deploy"?`,
		"lab dwon":               `did you mean "down"?`,
		"state":                  "",
		"frobnicate":             "pando --help",
		"deploy":                 "no argument was given; want: pando deploy FILE.yaml",
		"status a b":             "2 arguments were given; want: pando status [SERVICE]",
		"scale web":              "want: pando scale SERVICE N|auto",
		"scale web many":         `want a number or auto, got "many"`,
		"scale web -- -3":        `want a number or auto, got "-3"`,
		"ps --what":              "pando ps --help",
		"ps -o xml":              "want text or json",
		"deploy x --timeout 1":   `--timeout: want a duration such as 500ms, 10s, 5m, 24h or 1d12h, got "1"`,
		"scale web 2 --for 1w":   `--for: want a duration such as 500ms, 10s, 5m, 24h or 1d12h, got "1w"`,
		"logs web --lines abc":   `--lines: want a number, got "abc"`,
		"why web -n x":           `--number: want a number, got "x"`,
		"scale web -1":           "-1 is below 0, or an unknown flag",
		"ps -x":                  "there is no flag -x",
		"logs web --since 1w":    "want a duration such as 10m or 1d",
		"logs web -n 1 --tail 2": "--lines and --tail are the same",
		"logs web --grep (":      "--grep: error parsing regexp",
		"logs web --lines -4":    "--lines: want 0 to 100000, got -4",
		"exec web":               "want: pando exec SERVICE",
		"exec web --":            "want: pando exec SERVICE",
		"exec -t web -- ls":      "standard input is no terminal",
		"diff a.yaml 2":          "a file has no revisions",
		"rollback web --to -1":   "--to: want the number of a revision, got -1",
		"down --drain 1d --now":  "--drain and --now do not go together: write one of them",
		"recover web":            "write one of --force-from and --move",
		"why web -n 2 --pending": "--number and --pending do not go together",
		"down --purge=maybe":     `--purge: want true or false, got "maybe"`,
	} {
		want, code := want, 2
		if want == "" {
			code = 0 // a group of commands prints its help
		}
		got := invoke("/nowhere", strings.Fields(line)...)
		if got.code != code || !strings.Contains(got.err, want) {
			t.Errorf("pando %s: code %d, want %d: %s\nwant %s", line, got.code, code, got.err, want)
		}
	}
}

func TestNotRunningIsSaidByEveryCommand(t *testing.T) {
	file := t.TempDir() + "/a.yaml"
	writeFile(t, file, "name: a\ncommand: x\n")
	for _, line := range []string{"ps", "ps --watch", "status", "status web", "why web", "logs web",
		"watch", "watch web", "scale web 2", "scale web auto",
		"rm web", "state log web", "hosts",
		"history web", "stats", "exec web -- ls",
		"stats web", "rollback web", "rollout status web", "rollout undo web", "diff web",
		"diff " + file, "spec show web", "deploy " + file,
		"deploy --dry-run " + file} {
		got := invoke("/nowhere/api.sock", strings.Fields(line)...)
		if got.code != 8 || !strings.Contains(got.err, "start it with `pando up`") ||
			strings.Count(got.err, "\n") != 1 {
			t.Errorf("pando %s: code %d: %s", line, got.code, got.err)
		}
	}
}

func TestWhatNeedsNoPandoRuns(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/good.yaml", "name: web\ncommand: x\nports: [80]\nscale: {min: 1, max: 3}\n")
	writeFile(t, dir+"/bad.yaml", "name: web\ncommand: x\nscale:\n  maks: 3\n")
	got := invoke("", "spec", "check", dir+"/good.yaml")
	if got.code != 0 || got.out != "web is good: 1 to 3 instances, ports 80/tcp\n" {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{
		{"spec", "check", dir + "/good.yaml", dir + "/bad.yaml"}, {"deploy", dir + "/bad.yaml"},
	} {
		if got := invoke("/nowhere", args...); got.code != 3 || got.out != "" ||
			!strings.Contains(got.err, dir+"/bad.yaml:4:3: scale.maks: unknown key") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := invoke("/nowhere", "deploy", dir+"/none.yaml"); got.code != 4 ||
		!strings.Contains(got.err, "none.yaml") {
		t.Errorf("%+v", got)
	}
	var schema map[string]any
	if got := invoke("", "spec", "schema"); got.code != 0 ||
		json.Unmarshal([]byte(got.out), &schema) != nil || schema["properties"] == nil {
		t.Errorf("the schema: %.200s", got.out)
	}
	var v struct{ Version, Kernel string }
	if got := invoke("", "version", "-o", "json"); got.code != 0 ||
		json.Unmarshal([]byte(got.out), &v) != nil || v.Version == "" || v.Kernel == "" {
		t.Errorf("%+v", got)
	}
	if got := invoke("", "completion", "bash"); got.code != 0 ||
		!strings.Contains(got.out, "__complete") {
		t.Errorf("completion: code %d", got.code)
	}
}

func TestDoctorExaminesThisMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the trials need root")
	}
	var report struct {
		Fit    bool
		Checks []struct{ Name, State, Costs, Mend string }
	}
	got := invoke("", "doctor", "--data-dir", t.TempDir(), "-o", "json")
	if got.code != 0 || json.Unmarshal([]byte(got.out), &report) != nil || !report.Fit ||
		len(report.Checks) < 15 {
		t.Errorf("%+v", got)
	}
	text := invoke("", "doctor", "--data-dir", "/proc/pando")
	if text.code != 11 || text.err != "" || !strings.Contains(text.out, "MISSING  data folder") ||
		!strings.Contains(text.out, "cannot run here without: data folder.") {
		t.Errorf("code %d\n%s%s", text.code, text.out, text.err)
	}
}
