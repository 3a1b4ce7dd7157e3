package logfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pgregory.net/rapid"
)

// reads returns the lines of the log in a folder that a query wants.
func reads(t *testing.T, q pando.LogQuery, dir string) []string {
	t.Helper()
	lines, err := Read(t.Context(), clock.Clock{}, dir, "web-1", q)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	out := []string{}
	for {
		l, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil || l.Instance != "web-1" || l.At.IsZero() {
			t.Fatalf("%+v, %v", l, err)
		}
		out = append(out, l.Text)
	}
}

// logOf returns an empty log, and its folder.
func logOf(t *testing.T) (*Writer, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	l, err := Open(root, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	return l, filepath.Join(dir, "web-1")
}

func TestASearchFindsLinesInEveryFileOfALog(t *testing.T) {
	l, dir := logOf(t)
	for n := range 9 {
		if n%3 == 0 && n > 0 {
			l.rotate()
		}
		l.Write([]byte(fmt.Sprintf("%d status=%d\n", n, 200+n%2*300)))
	}
	l.Write([]byte("9 status=500 without an end"))
	for _, c := range []struct {
		q    pando.LogQuery
		want string
	}{
		{pando.LogQuery{Lines: 100, Match: "status=5.."}, "1 3 5 7 9"},
		{pando.LogQuery{Lines: 2, Match: "status=5.."}, "7 9"},
		{pando.LogQuery{Lines: 3}, "7 8 9"},
		{pando.LogQuery{Lines: 0}, ""},
		{pando.LogQuery{Lines: 100, Match: "^8"}, "8"},
		{pando.LogQuery{Lines: 100, Match: "none"}, ""},
		{pando.LogQuery{Lines: 100, Since: time.Now().Add(-time.Hour)}, "0 1 2 3 4 5 6 7 8 9"},
		{pando.LogQuery{Lines: 100, Since: time.Now().Add(time.Hour)}, ""},
	} {
		var got []string
		for _, text := range reads(t, c.q, dir) {
			got = append(got, text[:1])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: lines %v, want %s", c.q, got, c.want)
		}
	}
}

// For any times of the writes, since takes the lines of later marks and no older ones.
func TestSinceTakesTheLinesFromATimeOn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, dir := logOf(t)
		at := time.Now().Add(-time.Hour)
		var times []time.Time
		for n := range rapid.IntRange(1, 20).Draw(rt, "writes") {
			at = at.Add(time.Duration(rapid.IntRange(100, 5000).Draw(rt, "pause")) * time.Millisecond)
			times = append(times, at)
			l.mark(l.size, at)
			b := []byte(fmt.Sprintf("%d\n", n))
			if _, err := l.file.Write(b); err != nil {
				rt.Fatal(err)
			}
			l.size += int64(len(b))
			if rapid.IntRange(0, 5).Draw(rt, "rotates") == 0 && n < 2 {
				l.rotate()
			}
		}
		n := rapid.IntRange(0, len(times)-1).Draw(rt, "from")
		got := reads(t, pando.LogQuery{Lines: 100, Since: times[n]}, dir)
		if len(got) != len(times)-n || got[0] != fmt.Sprint(n) {
			rt.Fatalf("since write %d of %d: %v", n, len(times), got)
		}
	})
}

// An older build wrote no times: its lines have the time of their file.
func TestALogWithoutTimesIsRead(t *testing.T) {
	l, dir := logOf(t)
	l.Write([]byte("one\ntwo\n"))
	path := dir
	if err := os.Remove(filepath.Join(path, "times")); err != nil {
		t.Fatal(err)
	}
	hour := pando.LogQuery{Lines: 10, Since: time.Now().Add(-time.Hour)}
	if got := reads(t, hour, dir); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q", got)
	}
	if err := os.WriteFile(filepath.Join(path, "times"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, hour, dir); len(got) != 2 {
		t.Errorf("with a torn mark: %q", got)
	}
}

func TestALineIsCutAtItsLimit(t *testing.T) {
	l, dir := logOf(t)
	l.Write([]byte(strings.Repeat("x", 150_000) + "\nend\n"))
	got := reads(t, pando.LogQuery{Lines: 10}, dir)
	if len(got) != 4 || len(got[0]) != 65536 || len(got[2]) != 150_000-2*65536 || got[3] != "end" {
		t.Errorf("%d lines", len(got))
	}
}

func TestALogThatIsFullOfTimesRotates(t *testing.T) {
	l, _ := logOf(t)
	l.marks = marksMax
	l.Write([]byte("one\n"))
	if l.marks != 1 || l.size != 4 {
		t.Errorf("%d marks, %d bytes", l.marks, l.size)
	}
}

// Every line is read once and in order, even if the log rotates under the reader.
func TestLogIsFollowedAcrossRotations(t *testing.T) {
	log, dir := logOf(t)
	line := func(n int) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", 60_000)) }
	log.Write([]byte("begin\n"))
	lines, err := Read(t.Context(), clock.Clock{}, dir, "web-1",
		pando.LogQuery{Lines: 1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	if got, err := lines.Next(); err != nil || got.Text != "begin" {
		t.Fatal(got, err)
	}
	log.Write([]byte(line(0) + "\n"))
	const step = 45 // at a time, so that some are written while the reader is behind
	for n := range 20 * step {
		got, err := lines.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got.Text != line(n) || got.Instance != "web-1" {
			t.Fatalf("line %d is %.20q with %d bytes", n, got.Text, len(got.Text))
		}
		if n%step == 0 {
			for i := n + 1; i <= n+step; i++ {
				log.Write([]byte(line(i) + "\n"))
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "log*"))
	if err != nil || len(files) != logsKept {
		t.Errorf("kept %v, want %d files", files, logsKept)
	}
}

// A search ends with its caller: it does not go through the rest of the files.
func TestASearchEndsWithItsCaller(t *testing.T) {
	l, dir := logOf(t)
	l.Write([]byte("a line\n"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, follow := range []bool{false, true} {
		lines, err := Read(ctx, clock.Clock{}, dir, "web-1",
			pando.LogQuery{Lines: 9, Match: "x", Follow: follow})
		if !errors.Is(err, context.Canceled) {
			lines.Close()
			t.Errorf("follow %t: %v", follow, err)
		}
	}
}
