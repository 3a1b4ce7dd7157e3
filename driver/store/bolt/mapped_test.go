package bolt

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

// residentBytes returns how much of a file is resident in this process.
func residentBytes(t *testing.T, path string) (n int64) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	of := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if first, _, _ := strings.Cut(line, " "); strings.Contains(first, "-") {
			of = strings.HasSuffix(line, path)
		}
		var kb int64
		if _, err := fmt.Sscanf(line, "Rss: %d kB", &kb); err == nil && of {
			n += kb << 10
		}
	}
	return n
}

// A clone reads every object of the file.
func TestReadingEverythingLeavesLittleOfTheFileInMemory(t *testing.T) {
	defer func(was int64) { mappedBytesMax = was }(mappedBytesMax)
	mappedBytesMax = 4 << 20
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const objects, size = 4000, 12 << 10
	id := func(n int) pando.ObjectID { return pando.ObjectID{byte(n), byte(n >> 8), 1} }
	for n := 0; n < objects; {
		var u pando.ObjectsUpdate
		for range 200 {
			u.Objects = append(u.Objects, pando.Object{
				ID: id(n), Kind: pando.BlobObject, Body: []byte(strings.Repeat(string(rune('a'+n%26)), size)),
			})
			n++
		}
		if err := s.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	s.cache.clear()
	most := int64(0)
	for n := range objects {
		if _, body, err := s.Object(id(n)); err != nil || len(body) != size || body[0] != byte('a'+n%26) {
			t.Fatalf("object %d: %v", n, err)
		}
		if n%100 == 0 {
			most = max(most, residentBytes(t, path))
		}
	}
	if whole := int64(objects * size); most > 16<<20 || most >= whole {
		t.Errorf("%d KB of a file of %d KB are in memory", most>>10, whole>>10)
	}
}
