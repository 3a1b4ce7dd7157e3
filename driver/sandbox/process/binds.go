package process

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// binds returns the mounts of folders and files of the host that an instance sees at a path of its
// own. Links are resolved here, so that the shim follows none. Hidden folders are refused.
func binds(folders []pando.Folder, hidden []string) (out []wire.Volume, err error) {
	for _, f := range folders {
		from, err := filepath.EvalSymlinks(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("folders: %s is missing on this host: make it on each host, or choose "+
				"hosts that have it with `place: {only: …}`", f.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("folders: %w", err)
		}
		for _, dir := range hidden {
			if view.IsBelow(dir, from) || view.IsBelow(from, dir) {
				return nil, fmt.Errorf("%w: folders: %s is or contains the data of Pando; name "+
					"another folder", pando.ErrRefused, f.Path)
			}
		}
		out = append(out, wire.Volume{From: from, At: f.At, Write: f.Write, Host: true})
	}
	return out, nil
}
