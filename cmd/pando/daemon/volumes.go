package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/store/backup"
)

// archiveOf returns a function that writes the volumes of this host as a tar archive.
func archiveOf(p place) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		return volume.Archive(ctx, p.volumes(), w)
	}
}

// bringVolumes brings back the volumes of this host that it lacks, and returns their names. A
// backup without volumes brings none.
func (r *restoration) bringVolumes() ([]string, error) {
	name := backup.VolumesFile(pando.HostName(r.place.Host))
	f, err := os.Open(filepath.Join(r.dir, filepath.FromSlash(name)))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.MkdirAll(r.place.volumes(), 0o700); err != nil {
		return nil, fmt.Errorf("bring back the volumes: %w", err)
	}
	return volume.Restore(r.place.volumes(), f)
}

// volumesOnly brings back the volumes of this host alone.
func (r *restoration) volumesOnly() error {
	if r.is.Parts[backup.VolumesFile(pando.HostName(r.place.Host))] == "" {
		return fmt.Errorf("the volumes of host %s in the backup: %w; make one with `pando backup "+
			"--volumes`", r.place.Host, pando.ErrNotFound)
	}
	back, err := r.bringVolumes()
	if err != nil {
		return err
	}
	done := struct {
		Volumes []string `json:"volumes"`
	}{append([]string{}, back...)}
	return r.machine.Show(done, func(w io.Writer) {
		for _, one := range back {
			fmt.Fprintf(w, "%s is back\n", cli.Clean(one))
		}
		fmt.Fprintf(w, "%d volumes are back; those that were here stay\n", len(back))
	})
}
