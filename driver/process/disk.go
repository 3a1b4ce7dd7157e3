package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// disk measures the disk with the volumes of a host.
type disk struct{ *Driver }

// DiskOf returns the disk with the volumes of a driver.
func DiskOf(d *Driver) pando.Disk { return disk{d} }

// Room implements pando.Disk. A folder that is not there yet will be on the disk of the nearest one
// above it.
func (d disk) Room() (pando.DiskRoom, error) {
	for dir := d.Volumes; ; dir = filepath.Dir(dir) {
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
func (d disk) MeasureVolume(ctx context.Context, p pando.VolumePart) (pando.VolumeUse, error) {
	v := pando.KeptVolume{Path: filepath.Join(d.Volumes, string(p.Service.Tenant),
		string(p.Service.Name), p.Name, p.Part)}
	if _, err := os.Lstat(v.Path); err != nil {
		return pando.VolumeUse{}, ignoreGone(err)
	}
	err := measure(ctx, &v)
	return pando.VolumeUse{Bytes: v.Bytes, Files: v.Files, Partial: v.Partial}, err
}
