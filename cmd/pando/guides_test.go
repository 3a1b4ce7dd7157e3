package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// The guides are run as they stand: a fenced block that names a file is that file, an indented block is commands.
func TestTheGuidesAreTrue(t *testing.T) {
	for _, name := range []string{"first-service.md", "operate.md"} {
		t.Run(name, func(t *testing.T) {
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
				for line := range strings.Lines(b.text) {
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

// follow does what a line says, as root on the first host or on the one whose prompt it has. The daemons get a place of their own,
// and TOKEN stands for one that the server makes.
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
	place := " --data-dir " + p.Data(host) + " --host " + host
	script := "set -o pipefail; cd " + p.Dir + "; PATH=" + filepath.Dir(p.Bin) + ":$PATH\n" +
		"pando() { case $1 in up|down) command pando \"$@\"" + place + ";; *) command pando \"$@\";; esac; }\n" + line
	out := p.Run(host, "bash", "-c", script)
	if (out.Code != 0) != fails {
		p.Fatalf("%s\non %s ended with %d\n%s", line, host, out.Code, out.Text)
	}
}

// block is a file or some commands of a guide.
type block struct{ file, text string }

func blocks(guide string) (out []block) {
	fenced, commands := false, false
	for line := range strings.Lines(guide) {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && fenced:
			fenced, commands = false, false
		case fence:
			_, file, _ := strings.Cut(strings.TrimSpace(info), " ")
			out, fenced = append(out, block{file: file}), true
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
