package fault

import (
	"os"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// An uncommitted write of an instance survives its agent. If the write is lost, the next commit
// reports that once instead of committing the rest.
func TestWhatIsWrittenOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t, labtest.Options{})
	s.deploy()
	i := s.web.Status().Instances[0]
	write := func(line string) {
		t.Helper()
		if text, ok := s.askWith(i, "PATCH", "/state/log", line); !ok {
			t.Fatalf("write %s: %s", line, text)
		}
	}
	restart := func(between func()) {
		t.Helper()
		s.KillAgent(s.Host())
		between()
		s.serving()
		s.Await("the agent at the instance's socket",
			func() (string, bool) { return s.ask(i, "GET", "") })
	}
	want := func(lines ...string) {
		t.Helper()
		if log, _ := s.ask(i, "GET", "/state/log"); log != strings.Join(lines, "\n")+"\n" {
			t.Errorf("the log is %q, want %q", log, lines)
		}
	}
	write("first")
	write("second")
	restart(func() {})
	want("first", "second")
	if text, ok := s.ask(i, "POST", "/state/commit"); !ok {
		t.Fatalf("commit: %s", text)
	}
	restart(func() {}) // and committed lines do not appear twice
	want("first", "second")

	write("third")
	restart(func() { s.damage(i.ID) })
	if text, ok := s.ask(i, "POST", "/state/commit"); ok || !strings.Contains(text, `"lost"`) ||
		!strings.Contains(text, "write them again") {
		t.Errorf("the commit of lost writes was answered with %s", text)
	}
	write("third")
	if text, ok := s.ask(i, "POST", "/state/push"); !ok {
		t.Errorf("the push of the repeated writes: %s", text)
	}
	want("first", "second", "third")
	s.nothingLeft()
}

// damage corrupts the journal of an instance's writes.
func (s *site) damage(i pando.InstanceID) {
	s.Helper()
	path := s.Path(s.Host(), "/run/pando/journal/"+string(i))
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		s.Fatalf("%d bytes are kept of the writes of %s, %v", len(b), i, err)
	}
	b[len(b)-1] ^= 0xff
	if err := os.WriteFile(path, b, 0o600); err != nil {
		s.Fatal(err)
	}
}
