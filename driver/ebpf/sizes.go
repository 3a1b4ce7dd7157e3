package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Former builds of this layout made these tables larger, took the memory of all their entries at
// once, or mapped none of it. A pinned one stays so until the next boot: a copy would cost packets.
var formerSizes = []string{"fragments", "links", "opening", "opening6", "policies", "ports",
	"ranks", "scores"}

// keepSizes gives tables the sizes of the pinned ones in a folder.
func keepSizes(spec *ebpf.CollectionSpec, dir string) error {
	for _, name := range formerSizes {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the size of the pinned table %s: %w", name, err)
		}
		spec.Maps[name].MaxEntries, spec.Maps[name].Flags = m.MaxEntries(), m.Flags()
		if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}
