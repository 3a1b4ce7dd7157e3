package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Bounds limits what a store keeps of images that nothing uses.
type Bounds struct {
	Age   time.Duration // since the last use
	Bytes int64         // of the whole store, packed and unpacked
}

// lately is how long after its last use an image stays in any case: its next start may be on the
// way.
const lately = time.Hour

// List returns the images of this store, the last used first. It leaves out one with missing blobs.
func (s *Store) List() ([]pando.ImageStatus, error) {
	entries, err := os.ReadDir(s.records())
	if err != nil {
		return nil, fmt.Errorf("list the images of this host: %w", err)
	}
	var out []pando.ImageStatus
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil {
			continue // a file in the making
		}
		st, err := e.Info()
		if err != nil {
			continue // it was removed meanwhile
		}
		k, err := s.look(top)
		if err != nil {
			continue
		}
		i := pando.ImageStatus{Host: s.Host, Digest: top.String(), References: s.recalled(top).references(),
			Config: configOf(k.config), Unpacked: s.complete(k), Used: st.ModTime()}
		for n, d := range k.manifest.Layers {
			i.Layers = append(i.Layers, pando.ImageLayer{Digest: d.Digest.String(), Bytes: d.Size,
				Files: k.config.RootFS.DiffIDs[n].String()})
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b pando.ImageStatus) int { return b.Used.Compare(a.Used) })
	return out, nil
}

// Remove forgets an image, and deletes the layers that no other image has.
func (s *Store) Remove(ctx context.Context, text string) error {
	top, err := digest(text)
	if err != nil {
		return err
	}
	done, err := s.lock(ctx, "all", unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer done()
	if err := os.Remove(s.record(top)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("image %s: %w on this host; `pando image ls` lists them", short(top),
			pando.ErrNotFound)
	} else if err != nil {
		return fmt.Errorf("remove image %s: %w", short(top), err)
	}
	return s.prune()
}

// Sweep removes images that nothing uses: those of a higher age, and while the store is over its
// bytes, the longest unused ones of the tenant with the most. It does nothing while a pull runs, and never removes a digest to
// keep.
func (s *Store) Sweep(
	ctx context.Context, keep map[string]bool, b Bounds,
) (removed []string, err error) {
	done, err := s.tryAll()
	if err != nil || done == nil {
		return nil, err
	}
	defer done()
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	now := s.Clock.Now()
	for _, i := range (charges{s}).inTurn(all) {
		unused := now.Sub(i.Used)
		if keep[i.Digest] || unused < min(lately, b.Age) || ctx.Err() != nil {
			continue
		}
		over := false
		if unused <= b.Age {
			if over = s.bytes() > b.Bytes || (charges{s}).crowded(i.Digest); !over {
				continue
			}
		}
		top, err := digest(i.Digest)
		if err != nil {
			return removed, err
		}
		if err := os.Remove(s.record(top)); err != nil {
			return removed, fmt.Errorf("remove image %s: %w", short(top), err)
		}
		removed = append(removed, i.Digest)
		if over {
			if err := s.prune(); err != nil {
				return removed, err
			}
		}
	}
	return removed, s.prune()
}

// tryAll excludes every pull, or returns nil if one runs.
func (s *vault) tryAll() (done func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.locks(), "all"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store of images: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, nil
	}
	return func() { f.Close() }, nil
}

// prune deletes every blob, layer and description of a snapshot that no recorded image has. The caller excludes pulls.
func (s *Store) prune() error {
	s.mu.Lock()
	clear(s.known)
	s.mu.Unlock()
	entries, err := os.ReadDir(s.records())
	if err != nil {
		return fmt.Errorf("find unused layers: %w", err)
	}
	blobs, layers, recorded := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil {
			continue
		}
		recorded[top.Hex] = true
		k, err := s.look(top)
		if err != nil {
			continue // without its manifest it cannot run, and the next pull brings everything
		}
		blobs[top.Hex], blobs[k.manifest.Config.Digest.Hex] = true, true
		blobs[k.child.Hex] = true
		for n, d := range k.manifest.Layers {
			blobs[d.Digest.Hex] = true
			layers[layerName(k.config.RootFS.DiffIDs[n])] = true
		}
	}
	return errors.Join(removeOthers(s.blobs(), blobs), removeOthers(s.LayersDir(), layers),
		removeOthers(s.snapshots(), recorded), removeOthers(s.sent.Dir, blobs))
}

// removeOthers deletes the files and folders of a folder that are not to keep.
func removeOthers(dir string, keep map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("find unused layers: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !keep[strings.TrimSuffix(strings.TrimSuffix(e.Name(), sizeSuffix), ownersSuffix)] {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Suffixes of files beside the folder of a layer: the bytes of its files, the lock of its making, and
// the large ids of its files, which most layers lack.
const (
	sizeSuffix   = ".bytes"
	lockSuffix   = ".lock"
	ownersSuffix = ".owners"
)

// bytes returns the size of the store: blobs, and the files of layers.
func (s *vault) bytes() (n int64) {
	entries, _ := os.ReadDir(s.blobs())
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			n += st.Size()
		}
	}
	sizes, _ := filepath.Glob(filepath.Join(s.LayersDir(), "*"+sizeSuffix))
	for _, file := range sizes {
		n += layerBytes(strings.TrimSuffix(file, sizeSuffix))
	}
	return n
}

// unpackedBytes returns the bytes of the files of a layer that is here.
func (s *vault) unpackedBytes(files v1.Hash) int64 { return layerBytes(s.layer(files)) }

// layerBytes returns the bytes of the files of a layer. It counts them if their record cannot be read.
func layerBytes(layer string) (n int64) {
	b, err := readBounded(layer+sizeSuffix, 64)
	if err == nil {
		n, err = strconv.ParseInt(string(b), 10, 64)
	}
	if err == nil {
		return n
	}
	n = 0
	// Files that go meanwhile do not count.
	_ = filepath.WalkDir(layer, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if st, err := e.Info(); err == nil {
			n += st.Size()
		}
		return nil
	})
	return n
}

// forget removes the record of an image. The next sweep deletes its blobs and its layers.
func (s *Store) forget(top v1.Hash) error {
	s.mu.Lock()
	delete(s.known, top.Hex)
	s.mu.Unlock()
	if err := os.Remove(s.record(top)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget image %s: %w", short(top), err)
	}
	return nil
}
