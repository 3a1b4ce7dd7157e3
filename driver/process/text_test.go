package process

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pando.run/pando"
)

// FuzzEvidence makes any line of a program fit for a record and a terminal.
func FuzzEvidence(f *testing.F) {
	for _, line := range []string{
		"", "plain", "tab\there", "\x1b[2J\x07", "\xff\xfe", strings.Repeat("ä", lineBytesMax),
		strings.Repeat("x", lineBytesMax), strings.Repeat("x", lineBytesMax+1), "\u202egnp.exe",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got := evidence(line)
		if !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, which is no text", line, got)
		}
		for _, r := range got {
			if r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q becomes %q with %q in it", line, got, r)
			}
		}
		// A replaced byte takes three.
		if len(got) > 3*lineBytesMax+len("…") {
			t.Errorf("%d bytes become %d", len(line), len(got))
		}
		if utf8.ValidString(line) && len(line) <= lineBytesMax && strings.IndexFunc(line,
			func(r rune) bool { return !unicode.IsPrint(r) }) < 0 && got != line {
			t.Errorf("a harmless line %q becomes %q", line, got)
		}
	})
}

// newLog returns a log below a folder.
func newLog(t *testing.T) (*logFile, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	l, err := openLogFile(root, "web/web-1")
	if err != nil {
		t.Fatal(err)
	}
	return l, filepath.Join(dir, "web/web-1")
}

// The last lines of a log are the last lines that were written, also right after a rotation.
func TestTheLastLinesAreTheLastWritten(t *testing.T) {
	l, dir := newLog(t)
	line := func(n int) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", 1000)) }
	for n := range 60 {
		if n == 30 {
			l.rotate()
		}
		l.write([]byte(line(n) + "\n"))
		for _, most := range []int{0, 1, 5, 40} {
			got := lastLines(dir, most)
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
	if got := lastLines(filepath.Join(dir, "none"), 5); got != nil {
		t.Errorf("a log that does not exist has %q", got)
	}
}

// A log keeps a bounded number of files, each of a bounded size.
func TestALogIsBounded(t *testing.T) {
	l, dir := newLog(t)
	chunk := bytes.Repeat([]byte("y"), 1<<20)
	for range 45 {
		l.write(chunk)
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
	l, dir := newLog(t)
	l.write([]byte("one\n"))
	again, err := openLogFile(l.root, "web/web-1")
	if err != nil {
		t.Fatal(err)
	}
	if again.size != 4 {
		t.Errorf("the log has %d bytes", again.size)
	}
	again.write([]byte("two\n"))
	if got := strings.Join(lastLines(dir, 5), " "); got != "one two" {
		t.Errorf("the log has %q", got)
	}
}

// wires returns the two ends of a socket between a driver and a shim.
func wires(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for n, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[n] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// A message arrives as it was sent, with its descriptor, in any order of messages.
func TestMessagesBetweenDriverAndShimArriveWhole(t *testing.T) {
	a, b := wires(t)
	rapid.Check(t, func(t *rapid.T) {
		type sent struct {
			r  reply
			fd bool
		}
		var all []sent
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			s := sent{reply{Error: rapid.String().Draw(t, "error"), Code: rapid.Int().Draw(t, "code")},
				rapid.Bool().Draw(t, "fd")}
			s.r.Output = rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "output")
			fd := -1
			if s.fd {
				fd = int(os.Stderr.Fd())
			}
			if err := send(a, s.r, fd); err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		for n, s := range all {
			var got reply
			file, err := receive(b, &got)
			if err != nil {
				t.Fatal(err)
			}
			if got.Error != strings.ToValidUTF8(s.r.Error, "\ufffd") || got.Code != s.r.Code ||
				!bytes.Equal(got.Output, s.r.Output) {
				t.Fatalf("message %d is %+v, want %+v", n, got, s.r)
			}
			if (file != nil) != s.fd {
				t.Fatalf("message %d came with a descriptor: %v, want %v", n, file != nil, s.fd)
			}
			if file != nil {
				file.Close()
			}
		}
	})
}

func TestAMessageThatIsTooLongIsRefused(t *testing.T) {
	a, b := wires(t)
	if _, err := a.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := receive(b, &reply{}); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("4 GiB: %v", err)
	}
	a.Close()
	if _, err := receive(b, &reply{}); err == nil {
		t.Error("a closed connection has a message")
	}
}
