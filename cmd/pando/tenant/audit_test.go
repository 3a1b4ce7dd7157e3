package tenant

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// The table shows the proven caller first, and the number of entries that are gone.
func TestTheAuditAsATable(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	a := pando.Audit{
		Trim: pando.AuditTrim{Deeds: 12, Until: at},
		Deeds: []pando.Deed{
			{At: at, Source: "token acme/ci", By: "anna", From: "192.0.2.7", Verb: "deploy",
				Object: "service acme/web", Revision: 3, Result: "ok", Detail: "revision 3: an edit"},
			{At: at, Source: "host host1", By: "ev\x1b[2Jil", Verb: "exec", Result: "refused: no\nforged"},
		},
	}
	var out bytes.Buffer
	deeds(&out, a)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "12 lines, ") {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for n, want := range map[int][]string{
		0: {"are gone"},
		2: {"token acme/ci (anna)", "192.0.2.7", "deploy", "service acme/web", "ok: revision 3: an edit"},
		3: {"host host1", "exec", "refused: no"},
	} {
		for _, text := range want {
			if !strings.Contains(lines[n], text) {
				t.Errorf("line %d lacks %q: %s", n, text, lines[n])
			}
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("a caller's name controls the terminal")
	}
	out.Reset()
	deeds(&out, pando.Audit{})
	if out.String() != "no lines\n" {
		t.Errorf("empty: %q", out.String())
	}
}
