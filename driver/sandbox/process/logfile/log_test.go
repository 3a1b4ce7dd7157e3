package logfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzEvidence makes any line of a program fit for a record and a terminal.
func FuzzEvidence(f *testing.F) {
	for _, line := range []string{
		"", "plain", "tab\there", "\x1b[2J\x07", "\xff\xfe", strings.Repeat("ä", LineBytesMax),
		strings.Repeat("x", LineBytesMax), strings.Repeat("x", LineBytesMax+1), "\u202egnp.exe",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got := Evidence(line)
		if !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, which is no text", line, got)
		}
		for _, r := range got {
			if r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q becomes %q with %q in it", line, got, r)
			}
		}
		// A replaced byte takes three.
		if len(got) > 3*LineBytesMax+len("…") {
			t.Errorf("%d bytes become %d", len(line), len(got))
		}
		if utf8.ValidString(line) && len(line) <= LineBytesMax && strings.IndexFunc(line,
			func(r rune) bool { return !unicode.IsPrint(r) }) < 0 && got != line {
			t.Errorf("a harmless line %q becomes %q", line, got)
		}
	})
}

// The last lines of a log are the last lines that were written, also right after a rotation.
func TestTheLastLinesAreTheLastWritten(t *testing.T) {
	l, dir := logOf(t)
	line := func(n int) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", 1000)) }
	for n := range 60 {
		if n == 30 {
			l.rotate()
		}
		l.Write([]byte(line(n) + "\n"))
		for _, most := range []int{0, 1, 5, 40} {
			got := LastLines(dir, most)
			want := min(most, n+1)
			if len(got) != want {
				t.Fatalf("after line %d: %d of the last %d lines", n, len(got), most)
			}
			for k, text := range got {
				if text != line(n-want+1+k) {
					t.Fatalf("after line %d: line %d of the last %d is %.20q", n, k, want, text)
				}
			}
		}
	}
	if got := LastLines(filepath.Join(dir, "none"), 5); got != nil {
		t.Errorf("a log that does not exist has %q", got)
	}
}

// A log keeps a bounded number of files, each of a bounded size.
func TestALogIsBounded(t *testing.T) {
	l, dir := logOf(t)
	chunk := bytes.Repeat([]byte("y"), 1<<20)
	for range 45 {
		l.Write(chunk)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2*logsKept { // each with its times
		t.Fatalf("%d files (%v), want %d", len(files), err, 2*logsKept)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || info.Size() > logBytesMax {
			t.Errorf("%s has %d bytes (%v), at most %d", f.Name(), info.Size(), err, logBytesMax)
		}
	}
}

// An agent that restarts continues the log of a program where it is.
func TestALogIsContinued(t *testing.T) {
	l, dir := logOf(t)
	l.Write([]byte("one\n"))
	again, err := Open(l.root, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	if again.size != 4 {
		t.Errorf("the log has %d bytes", again.size)
	}
	again.Write([]byte("two\n"))
	if got := strings.Join(LastLines(dir, 5), " "); got != "one two" {
		t.Errorf("the log has %q", got)
	}
}
