package journal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// A journal holds the records that a list in memory holds, through reopens, cuts of the file at its
// end and rewrites.
func TestAJournalIsAList(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		d := Folder(dir)
		path := filepath.Join(dir, "web-1")
		_ = os.Remove(path) // of the last run
		j := reopen(rt, d)
		var list []string
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0:
				j = reopen(rt, d)
			case 1: // a writer died inside a record that it had not reported
				cut(rt, path)
				j = reopen(rt, d)
				records(rt, j)
			case 2:
				keep := rapid.IntRange(0, len(list)).Draw(rt, "keep")
				list = slices.Clone(list[keep:])
				var bodies [][]byte
				for _, r := range list {
					bodies = append(bodies, []byte(r))
				}
				if err := j.Rewrite(bodies); err != nil {
					rt.Fatal(err)
				}
			default:
				r := string(rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(rt, "record"))
				if err := j.Append([]byte(r)); err != nil {
					rt.Fatal(err)
				}
				list = append(list, r)
			}
			if got := records(rt, j); !slices.Equal(got, list) {
				rt.Fatalf("the journal has %q, want %q", got, list)
			}
		}
	})
}

func reopen(t *rapid.T, d Folder) pando.Journal {
	j, err := d.Journal("web-1")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// cut appends the beginning of a record.
func cut(t *rapid.T, path string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole := frame(nil, rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "lost record"))
	if _, err := f.Write(whole[:rapid.IntRange(0, len(whole)-1).Draw(t, "written")]); err != nil {
		t.Fatal(err)
	}
}

func records(t *rapid.T, j pando.Journal) (out []string) {
	all, err := j.Records()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		out = append(out, string(r))
	}
	return out
}

// FuzzJournal reads any file without a panic. Records that are read survive the reopen.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(frame(frame(nil, []byte("one")), []byte("two")))
	f.Add(frame(nil, []byte("one"))[:9])
	f.Add(make([]byte, 64))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "web-1")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Folder(filepath.Dir(path)).Journal("web-1")
		if err != nil {
			t.Fatal(err)
		}
		first, err := j.Records()
		if err != nil {
			return // damage is reported
		}
		if err := j.Append([]byte("next")); err != nil {
			t.Fatal(err)
		}
		second, err := j.Records()
		if err != nil || len(second) != len(first)+1 || string(second[len(first)]) != "next" {
			t.Fatalf("%d records before, %d after an append (%v)", len(first), len(second), err)
		}
	})
}
