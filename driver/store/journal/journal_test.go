package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

func open(t *testing.T, d Folder) pando.Journal {
	t.Helper()
	j, err := d.Journal("web-1")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func want(t *testing.T, j pando.Journal, records ...string) {
	t.Helper()
	got, err := j.Records()
	if err != nil {
		t.Fatal(err)
	}
	text := []string{}
	for _, r := range got {
		text = append(text, string(r))
	}
	if !slices.Equal(text, records) {
		t.Errorf("the records are %q, want %q", text, records)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecordsOutliveTheirWriter(t *testing.T) {
	d := Folder(filepath.Join(t.TempDir(), "journals"))
	j := open(t, d)
	want(t, j)
	ok(t, j.Append([]byte("one")))
	ok(t, j.Append(bytes.Repeat([]byte("x"), 1<<20)))
	ok(t, j.Append([]byte("three\nlines\n")))
	big := string(bytes.Repeat([]byte("x"), 1<<20))
	want(t, open(t, d), "one", big, "three\nlines\n")
	ok(t, j.Rewrite([][]byte{[]byte("two"), []byte("three")}))
	ok(t, j.Append([]byte("four")))
	want(t, open(t, d), "two", "three", "four")
	ok(t, j.Rewrite(nil))
	want(t, open(t, d))
	ok(t, j.Append([]byte("five")))
	want(t, open(t, d), "five")
	ok(t, j.Remove())
	if left, _ := os.ReadDir(string(d)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A writer that dies in the middle of a record has not reported it as written.
func TestHalfARecordIsLeftOut(t *testing.T) {
	d := Folder(t.TempDir())
	path := filepath.Join(string(d), "web-1")
	j := open(t, d)
	ok(t, j.Append([]byte("one")))
	whole, err := os.ReadFile(path)
	ok(t, err)
	for n := range whole {
		ok(t, os.WriteFile(path, append(slices.Clone(whole), whole[:n]...), 0o600))
		j := open(t, d)
		want(t, j, "one")
		ok(t, j.Append([]byte("two")))
		want(t, open(t, d), "one", "two")
	}
}

// Damage is an error: a damaged journal that is read as whole would lose writes in silence.
func TestDamageIsTold(t *testing.T) {
	d := Folder(t.TempDir())
	path := filepath.Join(string(d), "web-1")
	j := open(t, d)
	ok(t, j.Append([]byte("one")))
	ok(t, j.Append([]byte("two")))
	whole, err := os.ReadFile(path)
	ok(t, err)
	for _, damaged := range [][]byte{
		append(slices.Clone(whole), make([]byte, 64)...), append(make([]byte, 11), whole[11:]...),
	} {
		ok(t, os.WriteFile(path, damaged, 0o600))
		if got, err := open(t, d).Records(); err == nil {
			t.Errorf("%q was read as %q", damaged, got)
		}
	}
}

// The records of sandboxes lie on the same tmpfs, so journals must not fill it.
func TestJournalsLeaveRoomForSandboxes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount of a tmpfs: %v", err)
	}
	defer func() { ok(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	j := open(t, Folder(dir))
	var err error
	n := 0
	for ; err == nil && n < 1024; n++ {
		err = j.Append(make([]byte, 4<<10))
	}
	if !errors.Is(err, pando.ErrStoreFull) {
		t.Fatalf("after %d records: %v", n, err)
	}
	ok(t, os.WriteFile(filepath.Join(dir, "slot.json"), make([]byte, 64<<10), 0o600))
	ok(t, j.Rewrite(nil))
	ok(t, j.Append([]byte("one")))
}
