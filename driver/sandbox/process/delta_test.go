package process

import (
	"archive/tar"
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
)

// Both hosts have the same pages in the end. Some change, move or vanish after the base was sent.
func TestMemoryTravelsAsADelta(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	page := func() []byte {
		b := make([]byte, pageBytes)
		for n := range b {
			b[n] = byte(random.Uint32())
		}
		return b
	}
	var was [][]byte
	for range 100 {
		was = append(was, page())
	}
	kept := bytes.Join(was, nil)
	for name, now := range map[string][]byte{
		"as it was": kept, "shorter": kept[:50*pageBytes], "empty": nil,
		"longer":      append(bytes.Clone(kept), page()...),
		"shifted":     append(page(), kept...),
		"one changed": bytes.Join([][]byte{kept[:7*pageBytes], page(), kept[8*pageBytes:]}, nil),
		"swapped":     bytes.Join([][]byte{was[1], was[0], kept[2*pageBytes:]}, nil),
		"all new":     append(page(), page()...),
	} {
		for _, only := range []bool{true, false} {
			here, there := t.TempDir(), t.TempDir()
			var sent bytes.Buffer
			out := tar.NewWriter(&sent)
			path := filepath.Join(here, "pages-1.img")
			err := os.WriteFile(filepath.Join(here, baseFile), kept, 0o600)
			var b *base
			if err == nil {
				b, err = sendBase(out, nil, here)
			}
			if err == nil {
				err = os.WriteFile(path, now, 0o600)
			}
			before := sent.Len()
			if err == nil {
				err = b.sendDelta(out, path, only)
			}
			if err == nil {
				err = out.Close()
			}
			b.close()
			if err != nil {
				t.Fatal(err)
			}
			if size := sent.Len() - before; name == "shifted" && size > 20<<10 {
				t.Errorf("%s: %d bytes were sent", name, size)
			}
			a := &arriving{in: tar.NewReader(&sent), move: pando.MoveMark{}}
			if err := a.receive(there); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := os.ReadFile(filepath.Join(there, "pages-1.img"))
			if err != nil || !bytes.Equal(got, now) {
				t.Errorf("%s: %d bytes arrived, want %d: %v", name, len(got), len(now), err)
			}
		}
	}
}
