// Package guides runs the commands of docs/guides as a reader would, on virtual hosts.
package guides

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

var fence = regexp.MustCompile("(?ms)^```([a-z ]+)\n(.*?)^```$")

// blocks returns the machine-readable parts of a guide by the label of their fence.
func blocks(t *testing.T, guide string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/guides", guide))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] += m[2]
	}
	return out
}

func TestState(t *testing.T) {
	t.Parallel()
	guide := blocks(t, "state.md")
	p := labtest.Up(t)
	p.Write("shop.sh", "set -eux\n"+guide["sh instance"])
	p.Deploy(guide["yaml"])
	p.Write("reader.sh",
		"set -eux\nPATH="+filepath.Dir(p.Bin)+":$PATH\ncd $(mktemp -d)\n"+guide["sh host"])
	said := p.Must(p.Host(), "sh", filepath.Join(p.Dir, "reader.sh"))
	for _, want := range []string{"the first visit", "3green", "GET /b"} {
		if !strings.Contains(said, want) {
			t.Errorf("the reader does not see %q:\n%s", want, said)
		}
	}
	logs := p.Pando("logs", "shop")
	for _, want := range []string{`"commit":"`, `"taken":6`, `"path":"baskets/anna"`} {
		if !strings.Contains(strings.ReplaceAll(logs, `": `, `":`), want) {
			t.Errorf("the instance did not receive %s:\n%s", want, logs)
		}
	}
}
