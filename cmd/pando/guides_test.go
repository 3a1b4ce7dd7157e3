package main

import (
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// continued is the end of a line that the next one continues.
var continued = regexp.MustCompile(`\\\n\s*`)

// The test runs the guides as they are. A fenced block that names a file is that file. A fenced
// block without a name is an excerpt of a spec. An indented block is a list of commands.
func TestTheGuidesAreTrue(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"first-service.md", "operate.md", "bring-your-own-program.md",
		"day-to-day.md", "configs.md", "edge.md"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", name))
			if err != nil {
				t.Fatal(err)
			}
			p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
			ran := 0
			for _, b := range blocks(string(text)) {
				if b.file != "" {
					p.Write(b.file, b.text)
					continue
				}
				if b.excerpt {
					p.Write("excerpt.yaml", b.spec())
					follow(p, "pando diff excerpt.yaml")
					continue
				}
				for line := range b.lines() {
					ran++
					follow(p, strings.TrimSpace(line))
				}
			}
			if ran < 10 {
				t.Errorf("only %d command lines were found", ran)
			}
		})
	}
}

// The guide of network functions needs no daemons. It runs in its own network namespace, where all
// processes end with the shell.
func TestTheGuideOfFunctionsIsTrue(t *testing.T) {
	bin, err := filepath.Abs(filepath.Join("..", "..", "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "pando-unit")); err != nil {
		t.Skip("bin/pando-unit is not there (deploy/build-unit): make test-all runs it")
	}
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", "network-function.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(bin, "..", "function"),
		filepath.Join(dir, "function")); err != nil {
		t.Fatal(err)
	}
	// The other host is an address of this one, and has its files. Its server keeps running during the
	// next commands.
	script := "set -e -o pipefail\nip link set lo up; ip addr add 192.0.2.2/32 dev lo\n" +
		"scp() { test -e $1; }\n" +
		"pando() { case $2 in run|ls|top|logs|rm|bill) set -- \"$@\" --run-dir $PWD/run --data-dir " +
		"$PWD/data;; esac; " + labtest.Build(t, "./cmd/pando") + " \"$@\"; }\n" +
		"listening() { until grep -q \" 020200C0:\" /proc/net/tcp; do [ $SECONDS -lt 60 ]; done; }\n"
	for i, b := range blocks(string(text)) {
		if b.file != "" {
			from := filepath.Join(dir, fmt.Sprint("file", i))
			if err := os.WriteFile(from, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			// Compare the file with the one that a command made.
			script += fmt.Sprintf("if [ -e %[2]s ]; then diff %[1]s %[2]s; else cp %[1]s %[2]s; fi\n",
				from, b.file)
			continue
		}
		for line := range b.lines() {
			if command, fails := strings.CutSuffix(strings.TrimSpace(line), "# fails"); fails {
				line = "if " + command + "; then exit 99; fi\n"
			}
			if command, there := strings.CutPrefix(strings.TrimSpace(line), "two# "); there {
				line = command + " & listening\n"
			}
			script += "echo '$' " + strconv.Quote(strings.TrimSpace(line)) + "\n" + line
		}
	}
	shell := exec.Command("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", script)
	shell.Dir = dir
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"equal": true`, "NOT AS EXPECTED", "the generator lost none",
		"hundred is gone", `"event":1000001`, "nat.1 ", `"takeovers"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the reader does not see %s:\n%s", want, out)
		}
	}
}

// follow runs one line as root, on the first host or on the host that the prompt names. The daemons
// get private folders, and TOKEN becomes a token made by the server.
func follow(p *labtest.Pando, line string) {
	p.Helper()
	fails, host := strings.HasSuffix(line, "# fails"), p.Host()
	for n, prompt := range []string{"two# ", "three# "} {
		if rest, ok := strings.CutPrefix(line, prompt); ok {
			line, host = rest, p.Hosts[n+1]
		}
	}
	if strings.Contains(line, "TOKEN") {
		line = strings.ReplaceAll(line, "TOKEN", p.Invitation()[3])
	}
	for n, h := range p.Hosts { // a guide calls the hosts of a lab host1, host2 and so on
		line = strings.TrimSpace(strings.ReplaceAll(line+" ", fmt.Sprintf(" host%d ", n+1), " "+h+" "))
	}
	place := " --data-dir " + p.Data(host) + " --host " + host
	script := "set -o pipefail; cd " + p.Dir + "; PATH=" + filepath.Dir(p.Bin) + ":$PATH\n" +
		"pando() { case $1 in up|down) command pando \"$@\"" + place +
		";; *) command pando \"$@\";; esac; }\n" + line
	out := p.Run(host, "bash", "-c", script)
	if (out.Code != 0) != fails {
		p.Fatalf("%s\non %s ended with %d\n%s", line, host, out.Code, out.Text)
	}
}

// block is a file, an excerpt of a spec or a list of commands from a guide.
type block struct {
	file, text string
	excerpt    bool
}

// spec returns an excerpt with the keys that every spec needs.
func (b block) spec() string {
	text := b.text
	for _, line := range []string{"name: excerpt", "command: [sleep, inf]", `ports: ["80"]`} {
		key, _, _ := strings.Cut(line, " ")
		if !strings.Contains("\n"+b.text, "\n"+key) {
			text += line + "\n"
		}
	}
	return text
}

// lines returns the commands of a block. A backslash joins a line to the next one.
func (b block) lines() iter.Seq[string] {
	return strings.Lines(continued.ReplaceAllString(b.text, " "))
}

func blocks(guide string) (out []block) {
	fenced, commands := false, false
	for line := range strings.Lines(guide) {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && fenced:
			fenced, commands = false, false
		case fence:
			_, file, _ := strings.Cut(strings.TrimSpace(info), " ")
			out, fenced = append(out, block{file: file, excerpt: file == ""}), true
		case fenced:
			out[len(out)-1].text += line
		case strings.HasPrefix(line, "    "):
			if !commands {
				out, commands = append(out, block{}), true
			}
			out[len(out)-1].text += line
		default:
			commands = false
		}
	}
	return out
}
