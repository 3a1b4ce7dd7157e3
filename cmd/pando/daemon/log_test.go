package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestADaemonsLogRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other, err := unix.Dup(int(f.Fd())) // standard output and error share one file
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	d := &daemonFile{path: path, most: 1000, fds: []int{int(f.Fd()), other}}
	for n := range 100 {
		if _, err := fmt.Fprintf(d, "line %02d %s\n", n, strings.Repeat("x", 90)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Write(other, []byte("a crash\n")); err != nil {
		t.Fatal(err)
	}
	var text string
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != daemonLogsKept {
		t.Fatalf("%v, %v: want %d files", files, err, daemonLogsKept)
	}
	for _, name := range []string{path + ".2", path + ".1", path} {
		b, err := os.ReadFile(name)
		if err != nil || len(b) > 1000+len("a crash\n") {
			t.Errorf("%s has %d bytes: %v", name, len(b), err)
		}
		text += string(b)
	}
	if first, _, _ := strings.Cut(text, " x"); !strings.HasPrefix(first, "line 7") ||
		!strings.HasSuffix(text, "a crash\n") || strings.Count(text, "line ") < 20 {
		t.Errorf("the newest lines are not there in order:\n%s", text)
	}
}
