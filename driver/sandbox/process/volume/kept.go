package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/untrusted"
	"pando.run/pando/driver/sandbox/process/wire"
)

// filesMeasuredMax bounds the files that a measurement of one volume reads.
const filesMeasuredMax = 2_000_000

// leavingVolume begins the name of a volume that is being deleted.
const leavingVolume = ".gone-"

// KeptVolumes implements pando.Volumes.
func (k *Store) KeptVolumes(
	ctx context.Context, q pando.VolumeQuery,
) ([]pando.KeptVolume, error) {
	if k.dir == "" {
		return nil, nil
	}
	all, err := filepath.Glob(filepath.Join(k.dir, "*", "*", "*", "*"))
	if err != nil {
		return nil, err
	}
	out := []pando.KeptVolume{}
	for _, path := range all {
		st, err := os.Lstat(path)
		v, ok := k.keptAt(path)
		if err != nil || !st.IsDir() || !ok || !q.Wants(v.Service, v.Name) {
			continue // an unfinished part, or a file of the operator
		}
		v.UID = OwnerOf(st)
		if q.Measure {
			if _, err := measure(ctx, &v); err != nil {
				return nil, fmt.Errorf("measure volume %s: %w", path, err)
			}
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b pando.KeptVolume) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Name, b.Name),
			cmp.Compare(len(a.Part), len(b.Part)), cmp.Compare(a.Part, b.Part))
	})
	return out, nil
}

// keptAt returns the volume of a folder. ok is false for a folder that is no part of a volume.
func (k *Store) keptAt(path string) (v pando.KeptVolume, ok bool) {
	below, err := filepath.Rel(k.dir, path)
	names := strings.Split(below, string(filepath.Separator))
	if err != nil || len(names) != 4 || slices.ContainsFunc(names, func(n string) bool {
		return strings.HasPrefix(n, ".")
	}) {
		return v, false
	}
	return pando.KeptVolume{
		Service: pando.ServiceKey{Tenant: pando.Tenant(names[0]), Name: pando.ServiceName(names[1])},
		Name:    names[2], Part: names[3], Host: k.host, Path: path,
	}, true
}

// measure counts the files of a volume and their bytes on the disk. Files may come and go
// meanwhile. deep reports folders beyond pando.VolumeDepthMax, whose files it does not count.
func measure(ctx context.Context, v *pando.KeptVolume) (deep bool, err error) {
	deep, err = untrusted.Walk(ctx, v.Path, pando.VolumeDepthMax, func(f *untrusted.File) error {
		v.Bytes += f.Blocks * 512
		if v.Files++; v.Files >= filesMeasuredMax {
			v.Partial = true
			return untrusted.ErrDone
		}
		return nil
	})
	v.Partial = v.Partial || deep
	if errors.Is(err, context.DeadlineExceeded) {
		v.Partial = true
		return deep, nil
	}
	return deep, ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveVolume implements pando.Volumes. A death on the way leaves a folder that the next removal
// of the service's volumes deletes.
func (k *Store) RemoveVolume(ctx context.Context, s pando.ServiceKey, name string) error {
	home := filepath.Join(k.dir, string(s.Tenant), string(s.Name))
	dir := filepath.Join(home, name)
	st, err := os.Lstat(dir)
	if k.dir == "" || filepath.Dir(dir) != home || strings.HasPrefix(name, ".") ||
		err != nil || !st.IsDir() {
		return fmt.Errorf("volume %s of %s on %s: %w", name, s, k.host, pando.ErrNotFound)
	}
	held, err := k.lockParts(dir)
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	leaving := filepath.Join(home, leavingVolume+name)
	if err := untrusted.Remove(leaving); err != nil {
		return fmt.Errorf("delete volume %s of %s: %w", name, s, err)
	}
	if err := os.Rename(dir, leaving); err != nil {
		return fmt.Errorf("delete volume %s of %s: %w", name, s, err)
	}
	if err := untrusted.Remove(leaving); err != nil {
		return fmt.Errorf("delete volume %s of %s: %w; run the command again", name, s, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := os.Remove(home); err == nil { // its last volume: the uid is free
		_ = os.Remove(filepath.Dir(home)) // fails while the tenant has other volumes
	}
	return nil
}

// lockParts locks every part of a volume against new instances. It returns ErrConflict if an
// instance has one. The caller closes the descriptors.
func (k *Store) lockParts(dir string) (held []int, err error) {
	parts, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read volume %s: %w", dir, err)
	}
	for _, p := range parts {
		fd, err := wire.HoldVolume(unix.AT_FDCWD, wire.Volume{From: filepath.Join(dir, p.Name())},
			unix.RESOLVE_NO_SYMLINKS)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return held, fmt.Errorf("%w: an instance has volume %s on %s; `pando ps` lists the instances",
				pando.ErrConflict, dir, k.host)
		}
		if err != nil {
			continue // a file of the operator
		}
		held = append(held, fd)
	}
	return held, nil
}

// Room implements pando.Disk. A folder that is not there yet will be on the disk of the nearest one
// above it.
func (k *Store) Room() (pando.DiskRoom, error) {
	for dir := k.dir; ; dir = filepath.Dir(dir) {
		room, err := RoomOf(dir)
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return room, err
		}
	}
}

// RoomOf returns the room of the disk with a folder, without the blocks that are root's.
func RoomOf(dir string) (pando.DiskRoom, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return pando.DiskRoom{}, fmt.Errorf("look for room on the disk of %s: %w", dir, err)
	}
	return pando.DiskRoom{Bytes: int64(fs.Blocks) * fs.Bsize, Free: int64(fs.Bavail) * fs.Bsize}, nil
}

// MeasureVolume implements pando.Disk.
func (k *Store) MeasureVolume(ctx context.Context, p pando.VolumePart) (pando.VolumeUse, error) {
	v := pando.KeptVolume{Path: filepath.Join(k.dir, string(p.Service.Tenant),
		string(p.Service.Name), p.Name, p.Part)}
	if _, err := os.Lstat(v.Path); err != nil {
		return pando.VolumeUse{}, ignoreGone(err)
	}
	deep, err := measure(ctx, &v)
	return pando.VolumeUse{Bytes: v.Bytes, Files: v.Files, Partial: v.Partial, Deep: deep}, err
}
