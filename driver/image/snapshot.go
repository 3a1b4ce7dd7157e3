package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

var _ pando.Snapshots = Snapshots{}

// Snapshots is the part of a store with the snapshots of instances.
type Snapshots struct{ *Store }

// A snapshot is an image of one layer. A label has its description.
const (
	snapshotLabel    = "run.pando.snapshot"
	snapshotBytesMax = 8 << 30
)

// Keep implements pando.Snapshots. The folder becomes the unpacked layer, so this host copies the
// files only once.
func (s Snapshots) Keep(
	ctx context.Context, st pando.SnapshotStatus, key pando.SnapshotKey,
	freeze func(string, *pando.SnapshotStatus) error,
) (pando.SnapshotStatus, error) {
	done, err := s.using(ctx)
	if err != nil {
		return st, err
	}
	defer done()
	if err := s.room(0); err != nil {
		return st, err
	}
	dir, err := os.MkdirTemp(s.LayersDir(), ".new-*")
	if err != nil {
		return st, fmt.Errorf("make a folder for a snapshot: %w", noSpace(err))
	}
	defer os.RemoveAll(dir)
	if st.Encrypted = key != ""; st.Encrypted {
		err = sealed{key: key}.fill(dir, func(memory string) error { return freeze(memory, &st) })
	} else {
		err = freeze(dir, &st)
	}
	if err != nil {
		return st, noSpace(err)
	}
	if st.Bytes, err = ownByRoot(dir); err != nil {
		return st, err
	}
	st.At, st.Host = s.Clock.Now().UTC().Round(0), s.Host
	label, err := json.Marshal(st)
	if err != nil {
		return st, err
	}
	top, files, err := s.pack(&packer{ctx: ctx, left: snapshotBytesMax}, dir,
		map[string]string{snapshotLabel: string(label)})
	if err != nil {
		return st, fmt.Errorf("store a snapshot: %w", err)
	}
	err = writeFile(s.layer(files)+sizeSuffix, fmt.Appendf(nil, "%d", st.Bytes))
	if err == nil && !s.unpacked(files) {
		err = os.Rename(dir, s.layer(files))
	}
	if err == nil {
		err = s.remember(top, pando.SnapshotPrefix+string(st.Instance))
	}
	if err != nil {
		return st, fmt.Errorf("store a snapshot: %w", noSpace(err))
	}
	st.Digest = top.String()
	return st, s.forgetOld(st.Service)
}

// ownByRoot makes the files of a folder root's and readable, as those of an unpacked layer are, and
// returns their bytes. The folder above lets only root in.
func ownByRoot(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if e.IsDir() {
			mode = folderMode
		} else {
			bytes += st.Size()
		}
		return errors.Join(os.Lchown(path, 0, 0), os.Chmod(path, mode))
	})
	return bytes, err
}

// forgetOld removes the records of old snapshots of a service: all but the newest SnapshotsMax, and
// all but the newest SeedsMax of its seeds. The sweep deletes their files.
func (s Snapshots) forgetOld(k pando.ServiceKey) error {
	all, err := s.Kept(k)
	if err != nil {
		return err
	}
	var snapshots, seeds int
	for _, old := range all {
		n, most := &snapshots, pando.SnapshotsMax
		if old.Seed {
			n, most = &seeds, pando.SeedsMax
		}
		if *n++; *n <= most {
			continue
		}
		top, err := digest(old.Digest)
		if err == nil {
			err = os.Remove(s.record(top))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old snapshot: %w", err)
		}
	}
	return nil
}

// Kept implements pando.Snapshots.
func (s Snapshots) Kept(k pando.ServiceKey) ([]pando.SnapshotStatus, error) {
	entries, err := os.ReadDir(s.records())
	if err != nil {
		return nil, fmt.Errorf("list the snapshots of this host: %w", err)
	}
	var out []pando.SnapshotStatus
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil {
			continue // a file in the making
		}
		if st, ok := s.snapshot(top); ok && (k.Name == "" || st.Service == k) {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b pando.SnapshotStatus) int { return b.At.Compare(a.At) })
	return out, nil
}

// snapshot returns the description of an image that is a snapshot.
func (s Snapshots) snapshot(top v1.Hash) (st pando.SnapshotStatus, ok bool) {
	k, err := s.look(top)
	if err != nil {
		return st, false
	}
	label := k.config.Config.Labels[snapshotLabel]
	if label == "" || json.Unmarshal([]byte(label), &st) != nil {
		return st, false
	}
	st.Digest, st.Host = top.String(), s.Host
	return st, true
}

// Drop implements pando.Snapshots.
func (s Snapshots) Drop(ctx context.Context, k pando.ServiceKey, text string) error {
	top, err := digest(text)
	if err != nil {
		return err
	}
	if st, ok := s.snapshot(top); !ok || st.Service != k {
		return fmt.Errorf("snapshot %s of %s: %w on this host; `pando snapshot ls` lists them",
			short(top), k, pando.ErrNotFound)
	}
	return s.Remove(ctx, text)
}
