// Package volume keeps the volumes of a host: folders of services that outlive their instances. It
// makes, measures, archives and removes them.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// UidVolumes is the first uid of services that have volumes and name no user. The owner of such a
// service's folder is the same in all its instances, and no other service has it.
const UidVolumes = 2_100_000_000

// volumeWaitMax is how long a start waits until the former instance has let its volume go.
const volumeWaitMax = 30 * time.Second

// MakeFolder makes the folder of all volumes, which root alone enters. The ids of a volume's files
// are those inside, so root of an image may leave a setuid program of root there. No user of the host
// may start it. "": there is none.
func MakeFolder(dir string) error {
	if dir == "" {
		return nil
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return fmt.Errorf("make the folder of the volumes: %w", err)
	}
	return nil
}

// Provide makes the volumes of an instance that are missing, for the user of its program.
func (k *Store) Provide(spec pando.SandboxSpec, p *wire.Program) error {
	if len(spec.Spec.Volumes) == 0 {
		return nil
	}
	if k.dir == "" {
		return fmt.Errorf("%w: this host keeps no volumes", pando.ErrUnsupported)
	}
	home := filepath.Join(k.dir, string(p.Service.Tenant), string(p.Service.Name))
	owner, err := k.owner(home)
	if err != nil {
		return fmt.Errorf("keep the volumes of %s: %w", p.Service, err)
	}
	if spec.Spec.User == "" && p.Layers == nil {
		p.UID, p.GID = owner, owner
	}
	for _, v := range spec.Spec.Volumes {
		if !v.Shared && spec.Instance.Ordinal == 0 {
			return fmt.Errorf("%w: the server named no ordinal for volume %s; upgrade the server",
				pando.ErrUnsupported, v.Name)
		}
		at := home
		if of := v.Owner(p.Service); of != p.Service {
			at = filepath.Join(k.dir, string(of.Tenant), string(of.Name))
			if _, err := k.owner(at); err != nil {
				return fmt.Errorf("keep the volumes of %s: %w", of, err)
			}
		}
		from := filepath.Join(at, v.Name, v.Part(spec.Instance.Ordinal))
		if err := makeVolume(from, *p, v.Shared); err != nil {
			return fmt.Errorf("keep volume %s: %w", v.Name, err)
		}
		p.Volumes = append(p.Volumes, wire.Volume{From: from, At: v.Path, Shared: v.Shared,
			Write: !v.ReadOnly, Peek: spec.Instance.Run != nil && spec.Instance.Run.Beside})
	}
	return nil
}

// owner returns the uid of a service with volumes, and makes the folder of its volumes. The owner
// of that folder is the record of the uid.
func (k *Store) owner(home string) (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if st, err := os.Stat(home); err == nil && OwnerOf(st) >= UidVolumes {
		return OwnerOf(st), nil
	}
	taken := map[uint32]bool{}
	all, err := filepath.Glob(filepath.Join(k.dir, "*", "*"))
	if err != nil {
		return 0, err
	}
	for _, dir := range all {
		if st, err := os.Stat(dir); err == nil {
			taken[OwnerOf(st)] = true
		}
	}
	uid := uint32(UidVolumes)
	for taken[uid] {
		uid++
	}
	if err := os.MkdirAll(home, 0o711); err != nil {
		return 0, err
	}
	return uid, os.Chown(home, int(uid), 0)
}

// OwnerOf returns the user of a file.
func OwnerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}

// makeVolume makes the folder of a volume under its final name only once the program's user has it,
// so that a death on the way leaves none of root. That of an image's program is fresh: its shim
// gives it the owner of the image's folder (seed.go). Services with several users may share one.
func makeVolume(dir string, p wire.Program, shared bool) error {
	st, err := os.Lstat(dir)
	if err == nil {
		if shared {
			return nil
		}
		return checkOwner(p, dir, st)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	mode, uid, gid := os.FileMode(0o700), int(p.UID), int(p.GID)
	if p.Layers != nil {
		err = unix.Setxattr(temporary, wire.FreshMark, []byte("1"), 0)
		switch {
		case err == nil:
			uid, gid = 0, 0 // root of the image fills it
		case errors.Is(err, unix.EOPNOTSUPP): // it stays empty, and is the program's
			mode, err = 0o755, nil
		}
	}
	err = errors.Join(err, os.Chmod(temporary, mode), os.Chown(temporary, uid, gid))
	if err == nil {
		err = os.Rename(temporary, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	return nil
}

// checkOwner returns nil if a program can use a volume that is there.
func checkOwner(p wire.Program, dir string, st fs.FileInfo) error {
	has := OwnerOf(st)
	if has == p.UID {
		return nil
	}
	if p.Layers != nil {
		_, err := unix.Lgetxattr(dir, wire.FreshMark, nil)
		sys, ok := st.Sys().(*syscall.Stat_t) // ids on the disk are those inside
		if err == nil || ok && p.MayWrite(wire.Owner{UID: int(sys.Uid), GID: int(sys.Gid), Mode: sys.Mode & 0o7777}) {
			return nil
		}
	}
	return fmt.Errorf("%w: its files are of uid %d, and the program runs as uid %d; name the former "+
		"user in the spec, or `rm -r %s` without those files", pando.ErrRefused, has, p.UID, dir)
}

// WaitFree waits until no other instance has the volumes of a program. The kernel lets a volume go when
// its shim ends.
func (k *Store) WaitFree(ctx context.Context, all []wire.Volume) error {
	deadline := k.clock.Now().Add(volumeWaitMax)
	for _, v := range all {
		for !v.Host {
			fd, err := wire.HoldVolume(unix.AT_FDCWD, v, 0)
			if err == nil {
				unix.Close(fd)
				break
			}
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return fmt.Errorf("take volume %s: %w", v.From, err)
			}
			if k.clock.Now().After(deadline) {
				return fmt.Errorf("%w: another instance has had volume %s for %s; `pando ps` lists them",
					pando.ErrConflict, v.From, volumeWaitMax)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// Store has the volumes of a host, and measures their disk.
type Store struct {
	dir   string // "": the host keeps none
	host  pando.HostName
	clock pando.Clock
	mu    sync.Mutex // guards the folder of each service
}

// New returns the volumes below a folder of a host.
func New(dir string, h pando.HostName, clock pando.Clock) *Store {
	return &Store{dir: dir, host: h, clock: clock}
}
