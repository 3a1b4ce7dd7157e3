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

// A snapshot is an image of one layer. Its description is a file of this store, which no image can
// make: an image of a registry is never a snapshot, whatever its labels say.
const snapshotBytesMax = 8 << 30

// described is the file with the description of a snapshot.
func (s *vault) described(top v1.Hash) string { return filepath.Join(s.snapshots(), top.Hex) }

// Keep implements pando.Snapshots. The folder becomes the unpacked layer, so this host copies the
// files only once.
func (s Snapshots) Keep(
	ctx context.Context, st pando.SnapshotStatus, keys pando.SnapshotKeys,
	freeze func(string, *pando.SnapshotStatus) error,
) (out pando.SealedSnapshot, err error) {
	if keys.Seal == "" || st.Encrypted && keys.Files == "" {
		return out, fmt.Errorf("%w: a snapshot without its keys", pando.ErrInvalid)
	}
	done, err := s.using(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	if err := s.room(0); err != nil {
		return out, err
	}
	dir, err := os.MkdirTemp(s.LayersDir(), ".new-*")
	if err != nil {
		return out, fmt.Errorf("make a folder for a snapshot: %w", noSpace(err))
	}
	defer os.RemoveAll(dir)
	if st.Encrypted {
		err = sealed{key: keys.Files}.fill(dir, func(memory string) error { return freeze(memory, &st) })
	} else {
		err = freeze(dir, &st)
	}
	if err != nil {
		return out, noSpace(err)
	}
	if st.Bytes, err = ownByRoot(dir); err != nil {
		return out, err
	}
	top, files, err := s.pack(&packer{ctx: ctx, left: snapshotBytesMax}, dir)
	if err != nil {
		return out, fmt.Errorf("store a snapshot: %w", err)
	}
	st.At, st.Host, st.Digest = s.Clock.Now().UTC().Round(0), s.Host, top.String()
	if out, err = keys.Seal.Prove(st); err != nil {
		return out, err
	}
	err = writeFile(s.layer(files)+sizeSuffix, fmt.Appendf(nil, "%d", st.Bytes))
	if err == nil && !s.unpacked(files) {
		err = os.Rename(dir, s.layer(files))
	}
	if err == nil {
		err = s.describeSnapshot(top, out)
	}
	if err == nil {
		err = s.remember(top, "", pando.SnapshotPrefix+string(st.Instance))
	}
	if err != nil {
		return out, fmt.Errorf("store a snapshot: %w", noSpace(err))
	}
	return out, s.forgetOld(st.Service)
}

// describeSnapshot writes the description of a snapshot. Its Host is the one that took it.
func (s *vault) describeSnapshot(top v1.Hash, st pando.SealedSnapshot) error {
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return writeFile(s.described(top), text)
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

// forgetOld removes the records of old snapshots of a service that this host took: all but the
// newest SnapshotsMax, and all but the newest SeedsMax of its seeds. The sweep deletes their files. A
// copy displaces none: another host wrote its time.
func (s Snapshots) forgetOld(k pando.ServiceKey) error {
	all, err := s.Kept(k)
	if err != nil {
		return err
	}
	var snapshots, seeds int
	for _, old := range all {
		if old.Copy {
			continue
		}
		n, most := &snapshots, pando.SnapshotsMax
		if old.Seed {
			n, most = &seeds, pando.SeedsMax
		}
		if *n++; *n <= most {
			continue
		}
		top, err := digest(old.Digest)
		if err == nil {
			err = errors.Join(os.Remove(s.described(top)), os.Remove(s.record(top)))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old snapshot: %w", err)
		}
	}
	return nil
}

// Kept implements pando.Snapshots.
func (s Snapshots) Kept(k pando.ServiceKey) ([]pando.SealedSnapshot, error) {
	entries, err := os.ReadDir(s.snapshots())
	if err != nil {
		return nil, fmt.Errorf("list the snapshots of this host: %w", err)
	}
	var out []pando.SealedSnapshot
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil {
			continue // a file in the making
		}
		if st, ok := s.snapshot(top); ok && (k.Name == "" || st.Service == k) {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b pando.SealedSnapshot) int { return b.At.Compare(a.At) })
	return out, nil
}

// snapshot returns the description of a snapshot whose files are here.
func (s *Store) snapshot(top v1.Hash) (st pando.SealedSnapshot, ok bool) {
	text, err := readBounded(s.described(top), recordMax)
	if err != nil || json.Unmarshal(text, &st) != nil || st.Digest != top.String() {
		return st, false
	}
	if _, err := os.Stat(s.record(top)); err != nil {
		return st, false
	}
	if _, err := s.look(top); err != nil {
		return st, false
	}
	st.Host, st.Copy = s.Host, st.Host != s.Host
	return st, true
}

// Described returns the description of a snapshot, for another host. ErrNotFound: this host has none.
func (s Snapshots) Described(text string) (pando.SealedSnapshot, error) {
	top, err := digest(text)
	if err != nil {
		return pando.SealedSnapshot{}, err
	}
	st, ok := s.snapshot(top)
	if !ok {
		err = fmt.Errorf("snapshot %s: %w on this host", short(top), pando.ErrNotFound)
	}
	return st, err
}

// describeCopy brings the description of a snapshot from a host that has it. Control names the
// snapshot that an instance continues, after it has looked at the proof.
func (s *Store) describeCopy(ctx context.Context, top v1.Hash, hosts []pando.Host) error {
	if _, ok := s.snapshot(top); ok {
		return nil
	}
	asked := 0
	errs := []error{fmt.Errorf("%w: no host has the description of snapshot %s; `pando snapshot ls` "+
		"lists the snapshots of all hosts", pando.ErrUnavailable, short(top))}
	for _, h := range hosts {
		if s.PeerSnapshot == nil || h.Name == s.Host || asked == peersMax {
			continue
		}
		asked++
		ctx, cancel := context.WithTimeout(ctx, peerWaitMax)
		st, err := s.PeerSnapshot(ctx, h, top.String())
		cancel()
		if err == nil && st.Digest == top.String() {
			st.Host = h.Name
			return s.describeSnapshot(top, st)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
