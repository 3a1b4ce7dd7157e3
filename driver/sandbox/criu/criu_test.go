package criu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestAHostWithoutCRIUSaysHowToGetIt(t *testing.T) {
	here := Tool{Root: t.TempDir()}
	if err := here.Missing(); !errors.Is(err, pando.ErrUnsupported) ||
		!strings.Contains(err.Error(), "pando doctor") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := here.Freeze(t.Context(), pando.Frozen{}); !errors.Is(err, pando.ErrUnsupported) {
		t.Errorf("a freeze without CRIU: %v", err)
	}
	for _, name := range []string{loader, libraries, program} {
		path := filepath.Join(here.Root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if got := Find("", t.TempDir(), here.Root); got != here || got.Missing() != nil {
		t.Errorf("found %v, want %v", got, here)
	}
	if got := Find(""); got.Root != Home {
		t.Errorf("without a folder: %v", got)
	}
}

// A failure of CRIU reaches the operator with its cause, and with its meaning if it is a known one.
func TestTheCauseOfAFailureIsTheFirstErrorOfTheLog(t *testing.T) {
	for log, want := range map[string]string{
		"(0.1) Error (criu/tun.c:85): tun: Unable to create tun\n" +
			"(0.2) Error (criu/sk-unix.c:900): unix: external socket is used\n": "event `snapshot`",
		"(0.1) Error (criu/a.c:1): first\n(0.2) Error (criu/b.c:2): second\n": "CRIU: first; second",
		"no error at all": "CRIU: no error at all",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "log"), []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cause(dir); !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", log, err, want)
		}
	}
	if err := cause(t.TempDir()); err == nil {
		t.Error("no log is no error")
	}
}

func TestANamespaceThatIsGoneIsAnError(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	e := entrance{inside: 1 << 30}
	if _, err := e.start([]string{"criu"}, []*os.File{null, null, null, null}); err == nil ||
		!strings.Contains(err.Error(), "/ns/net") {
		t.Errorf("a sandbox without a process: %v", err)
	}
}
