package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// KeepSizes gives tables the sizes of the pinned ones in a folder. A pinned table of a former build
// stays as it is until the next boot: a copy would cost packets.
func KeepSizes(spec *ebpf.CollectionSpec, dir string, names ...string) error {
	for _, name := range names {
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
