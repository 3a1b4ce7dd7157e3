package process

import (
	"archive/tar"
	"bytes"
	"errors"
	"testing"

	"pando.run/pando"
)

// A program that this host has no room for is refused before its bytes come, whether they travel or
// are copied from its base.
func TestAProgramThatIsTooLargeIsRefused(t *testing.T) {
	send := func(name string, size int64, content []byte) *arriving {
		var sent bytes.Buffer
		out := tar.NewWriter(&sent)
		if err := out.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Write(content)
		return &arriving{in: tar.NewReader(&sent), room: room{bytes: 1 << 20, most: 1 << 20, files: 9}}
	}
	dir := t.TempDir()
	if err := send("base", 2<<20, nil).receiveIn(dir); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("2 MiB in 1 MiB: %v", err)
	}
	one := send("base", 4, []byte("page"))
	if err := one.receiveIn(dir); err != nil || one.room.bytes != 1<<20-4 {
		t.Errorf("4 bytes: %v, %d left", err, one.room.bytes)
	}
	head := make([]byte, 8)
	head[6] = 1 // 65,536 pages, of which none travels
	if err := send("pages-1.img.delta", 8, head).receiveIn(dir); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("256 MiB of pages of the base: %v", err)
	}
	many := send("base", 0, nil)
	many.room.files = 0
	if err := many.receiveIn(dir); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("too many files: %v", err)
	}
	if r, err := roomIn(dir); err != nil || r.bytes <= 0 {
		t.Errorf("this host has room for %d bytes (%v)", r.bytes, err)
	}
}
