package deeds

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pando.run/pando/access"
)

// lines returns the deeds of a file by their ids.
func lines(t *testing.T, path string) (ids []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var d access.Deed
		if err := json.Unmarshal(in.Bytes(), &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		ids = append(ids, d.ID)
	}
	return ids
}

// The newest deeds are kept in order over a bounded number of files.
func TestAFullFileMakesRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := Open(path)
	f.most = 1000
	const n = 100
	for i := range n {
		if err := f.Add(access.Deed{ID: fmt.Sprintf("%03d", i), Verb: "deploy"}); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != Kept {
		t.Fatalf("%d files, want %d: %v", len(files), Kept, err)
	}
	var all []string
	for k := Kept - 1; k > 0; k-- {
		all = append(all, lines(t, f.name(k))...)
	}
	all = append(all, lines(t, path)...)
	for k, id := range all {
		if want := fmt.Sprintf("%03d", n-len(all)+k); id != want {
			t.Fatalf("deed %d is %s, want %s: %v", k, id, want, all)
		}
	}
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || st.Size() > f.most || st.Mode().Perm() != 0o640 {
			t.Errorf("%s has %d bytes, mode %o: %v", name, st.Size(), st.Mode().Perm(), err)
		}
	}
}

// The tokens of one tenant that flood the audit push out the deeds of that tenant. A damaged line costs
// no other one.
func TestAFloodPushesOutItsOwnLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := Open(path)
	f.most = 2000
	if err := os.WriteFile(path, []byte("{damaged\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	add := func(id, source string) {
		t.Helper()
		if err := f.Add(access.Deed{ID: id, Source: source, Verb: "deploy"}); err != nil {
			t.Fatal(err)
		}
	}
	add("of-bank", "token bank/ci")
	add("of-host", "h1")
	for i := range 400 {
		add(fmt.Sprintf("flood-%03d", i), fmt.Sprintf("token acme/%d", i%3))
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != Kept {
		t.Fatalf("the files are %q: %v", files, err)
	}
	var all []byte
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil || int64(len(text)) > f.most {
			t.Errorf("%s has %d bytes: %v", name, len(text), err)
		}
		all = append(all, text...)
	}
	for _, id := range []string{"of-bank", "of-host", "flood-399"} {
		if !strings.Contains(string(all), id) {
			t.Errorf("the deed %s is gone", id)
		}
	}
	if strings.Contains(string(all), "flood-000") {
		t.Error("the flood keeps all its deeds: the test does not fill the files")
	}
}

// A text with a line break stays one line, and lines of two callers never mix.
func TestEachDeedIsOneLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := Open(path)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := f.Add(access.Deed{ID: fmt.Sprint(i), By: "a\nforged {}"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := lines(t, path); len(got) != 20 {
		t.Errorf("%d lines", len(got))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Add(access.Deed{ID: "next"}); err != nil || len(lines(t, path)) != 1 {
		t.Errorf("after somebody has removed it: %v", err)
	}
}

func TestADeedWithoutAFileNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "audit.log")
	if err := Open(path).Add(access.Deed{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}
