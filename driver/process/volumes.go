package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// mounted is a volume of an instance, or a folder of the host at another path.
type mounted struct {
	From   string `json:"from"` // of the host
	At     string `json:"at"`
	Shared bool   `json:"shared,omitempty"`
	Write  bool   `json:"write,omitempty"`
	Peek   bool   `json:"peek,omitempty"` // it is only read, beside the instance that has it
	Host   bool   `json:"host,omitempty"` // a folder or file of the host, which nothing locks
}

// uidVolumes is the first uid of services that have volumes and name no user. The owner of such a
// service's folder is the same in all its instances, and no other service has it.
const uidVolumes = 2_100_000_000

// volumeWaitMax is how long a start waits until the former instance has let its volume go.
const volumeWaitMax = 30 * time.Second

// closeVolumes makes the folder of all volumes, which root alone enters. The ids of a volume's files
// are those inside, so root of an image may leave a setuid program of root there. No user of the host
// may start it. "": there is none.
func closeVolumes(dir string) error {
	if dir == "" {
		return nil
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return fmt.Errorf("make the folder of the volumes: %w", err)
	}
	return nil
}

// volumes makes the volumes of an instance that are missing, for the user of its program.
func (d *Driver) volumes(spec pando.SandboxSpec, p *program) error {
	if len(spec.Spec.Volumes) == 0 {
		return nil
	}
	if d.Volumes == "" {
		return fmt.Errorf("%w: this host keeps no volumes", pando.ErrUnsupported)
	}
	home := filepath.Join(d.Volumes, string(p.Service.Tenant), string(p.Service.Name))
	owner, err := d.owner(home)
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
			at = filepath.Join(d.Volumes, string(of.Tenant), string(of.Name))
			if _, err := d.owner(at); err != nil {
				return fmt.Errorf("keep the volumes of %s: %w", of, err)
			}
		}
		from := filepath.Join(at, v.Name, v.Part(spec.Instance.Ordinal))
		if err := makeVolume(from, *p, v.Shared); err != nil {
			return fmt.Errorf("keep volume %s: %w", v.Name, err)
		}
		p.Volumes = append(p.Volumes, mounted{From: from, At: v.Path, Shared: v.Shared,
			Write: !v.ReadOnly, Peek: spec.Instance.Run != nil && spec.Instance.Run.Beside})
	}
	return nil
}

// owner returns the uid of a service with volumes, and makes the folder of its volumes. The owner
// of that folder is the record of the uid.
func (d *Driver) owner(home string) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st, err := os.Stat(home); err == nil && ownerOf(st) >= uidVolumes {
		return ownerOf(st), nil
	}
	taken := map[uint32]bool{}
	all, err := filepath.Glob(filepath.Join(d.Volumes, "*", "*"))
	if err != nil {
		return 0, err
	}
	for _, dir := range all {
		if st, err := os.Stat(dir); err == nil {
			taken[ownerOf(st)] = true
		}
	}
	uid := uint32(uidVolumes)
	for taken[uid] {
		uid++
	}
	if err := os.MkdirAll(home, 0o711); err != nil {
		return 0, err
	}
	return uid, os.Chown(home, int(uid), 0)
}

func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}

// makeVolume makes the folder of a volume under its final name only once the program's user has it,
// so that a death on the way leaves none of root. That of an image's program is fresh: its shim
// gives it the owner of the image's folder (seed.go). Services with several users may share one.
func makeVolume(dir string, p program, shared bool) error {
	st, err := os.Lstat(dir)
	if err == nil {
		if shared {
			return nil
		}
		return p.mayHave(dir, st)
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
		err = unix.Setxattr(temporary, freshMark, []byte("1"), 0)
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

// mayHave returns nil if the program can use a volume that is there.
func (p program) mayHave(dir string, st fs.FileInfo) error {
	has := ownerOf(st)
	if has == p.UID {
		return nil
	}
	if p.Layers != nil {
		_, err := unix.Lgetxattr(dir, freshMark, nil)
		sys, ok := st.Sys().(*syscall.Stat_t) // ids on the disk are those inside
		if err == nil || ok && p.writes(owned{int(sys.Uid), int(sys.Gid), sys.Mode & 0o7777}) {
			return nil
		}
	}
	return fmt.Errorf("%w: its files are of uid %d, and the program runs as uid %d; name the former "+
		"user in the spec, or `rm -r %s` without those files", pando.ErrRefused, has, p.UID, dir)
}

// free waits until no other instance has the volumes of a program. The kernel lets a volume go when
// its shim ends.
func (d *Driver) free(ctx context.Context, all []mounted) error {
	deadline := d.Clock.Now().Add(volumeWaitMax)
	for _, v := range all {
		for !v.Host {
			fd, err := hold(unix.AT_FDCWD, v, 0)
			if err == nil {
				unix.Close(fd)
				break
			}
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return fmt.Errorf("take volume %s: %w", v.From, err)
			}
			if d.Clock.Now().After(deadline) {
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

// hold opens a volume below a root and locks it for as long as the descriptor is open. A folder or
// file of the host is only opened, and no link on its path is followed.
func hold(root int, v mounted, resolve uint64) (int, error) {
	if v.Host {
		return unix.Openat2(root, v.From, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | resolve,
		})
	}
	fd, err := unix.Openat2(root, v.From, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS | resolve,
	})
	if err != nil {
		return -1, err
	}
	if v.Peek {
		return fd, nil
	}
	lock := unix.LOCK_EX
	if v.Shared {
		lock = unix.LOCK_SH
	}
	if err := unix.Flock(fd, lock|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// copied is a copy of a volume's mount in no namespace, until the sandbox has its own root.
type copied struct {
	at     string
	tree   int
	folder bool // not a file
	write  bool
	shared bool
	fills  int // descriptor of a volume that is to be filled; 0: none
}

// takeVolumes locks the volumes of a program while the host's root is visible. The shim keeps their
// descriptors, so the locks end with the sandbox.
func (s *shim) takeVolumes(p program) ([]copied, error) {
	if len(p.Volumes) == 0 {
		return nil, nil
	}
	host, err := unix.Open(hostRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(host)
	var out []copied
	for _, v := range p.Volumes {
		fd, err := hold(host, v, unix.RESOLVE_IN_ROOT)
		if err != nil {
			return nil, fmt.Errorf("take %s: %w", v.From, err)
		}
		tree, err := unix.OpenTree(fd, "",
			unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err != nil {
			return nil, fmt.Errorf("show %s: %w", v.From, err)
		}
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if v.Write {
			attr.Attr_clr = unix.MOUNT_ATTR_RDONLY
		}
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr)
		if err == nil && p.mapped(v) {
			err = mapUsers(tree, s.users, v.cure())
		}
		c := copied{at: v.At, tree: tree, write: v.Write, shared: v.Shared}
		if err == nil && p.Layers != nil && !v.Host && !v.Peek {
			var fills bool
			if fills, err = awaitFresh(fd, v.Shared); fills {
				c.fills = fd
			}
		}
		if err != nil {
			return nil, fmt.Errorf("show %s: %w", v.From, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(tree, &st); err != nil {
			return nil, fmt.Errorf("show %s: %w", v.From, err)
		}
		if v.Host { // a volume's descriptor stays open for its lock
			unix.Close(fd)
		}
		c.folder = st.Mode&unix.S_IFMT == unix.S_IFDIR
		out = append(out, c)
	}
	return out, nil
}

// mapped reports whether the ids of a volume are those inside of the program's users. So are those of
// a folder of the host that the program of an image may write: its spec grants it, and no user of the
// image is one of the host's.
func (p program) mapped(v mounted) bool {
	return p.Users != nil && (!v.Host || v.Write && p.Layers != nil)
}

// cure names what maps no users, and what helps.
func (v mounted) cure() string {
	if v.Host {
		return fmt.Sprintf("%s maps no users: choose a folder on ext4, XFS or btrfs, use a named volume "+
			"in its place, or set `userns_mode: host` in the spec", v.From)
	}
	return "volumes maps no users; move `--data-dir` to ext4, XFS or btrfs, or set `userns_mode: host` " +
		"in the spec"
}

// mountVolumes mounts the volumes and the folders in memory of a program below its root, or below
// that of the sandbox for "", outer ones first. No link of its files leads elsewhere.
func mountVolumes(all []copied, p program, top string) error {
	type step struct {
		at    string
		place func(root int, at string, owner uint32) (int, error)
		mount func(to int) error
	}
	var steps []step
	for _, c := range all {
		place := folderIn
		if !c.folder {
			place = fileIn
		}
		steps = append(steps, step{c.at, place, func(to int) error {
			defer unix.Close(c.tree)
			if !c.write {
				attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
				if err := unix.MountSetattr(c.tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
					return err
				}
			}
			return unix.MoveMount(c.tree, "", to, "",
				unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		}})
	}
	for _, t := range p.Tmpfs {
		options := fmt.Sprintf("size=%d,mode=%s,uid=%d,gid=%d", cmp.Or(t.Bytes, pando.TmpfsBytes),
			strconv.FormatUint(uint64(cmp.Or(t.Mode, 0o1777)), 8), p.outside(p.UID),
			p.outside(p.GID))
		steps = append(steps, step{t.Path, folderIn, func(to int) error {
			return mountMemory(to, t.Path, options, t.NoExec)
		}})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(len(a.at), len(b.at)) })
	root, err := unix.Open(top+"/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	for _, c := range all {
		if c.fills > 0 {
			if err := fillVolume(root, c.tree, c.fills, c.at, c.shared, p); err != nil {
				return err
			}
		}
	}
	for _, s := range steps {
		to, err := s.place(root, s.at[1:], p.outside(0))
		if err == nil {
			err = s.mount(to)
			unix.Close(to)
		}
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("the folder is missing and its place is read-only: %w", err)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w; check `volumes`, `folders` and `tmpfs` in the spec", s.at, err)
		}
	}
	return nil
}

// socketsFolder is the folder of the instance's sockets.
const socketsFolder = "/run/pando"

// mountMemory mounts a folder in memory. The sockets of the instance stay visible in it.
func mountMemory(to int, at, options string, noExec bool) error {
	if at != path.Dir(socketsFolder) {
		flags := uintptr(plain)
		if noExec {
			flags = inert
		}
		return unix.Mount("tmpfs", descriptor(to), "tmpfs", flags, options)
	}
	name := path.Base(socketsFolder)
	own, err := unix.OpenTree(to, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	memory, err := detachedMemory(options, noExec)
	if err != nil {
		return err
	}
	defer unix.Close(memory)
	if err := unix.Mkdirat(memory, name, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(memory, "", to, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	return unix.MoveMount(own, "", memory, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// detachedMemory makes a folder in memory that is mounted nowhere.
func detachedMemory(options string, noExec bool) (int, error) {
	attributes := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if noExec {
		attributes |= unix.MOUNT_ATTR_NOEXEC
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for option := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(option, "=")
		if err := unix.FsconfigSetString(fs, name, value); err != nil {
			return -1, fmt.Errorf("option %s: %w", option, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
}

// mounts reports whether a path of a program is in one of its volumes or folders in memory.
func (p program) mounts(path string) bool {
	return slices.ContainsFunc(p.Volumes, func(v mounted) bool { return below(v.At, path) }) ||
		slices.ContainsFunc(p.Tmpfs, func(t pando.Tmpfs) bool { return below(t.Path, path) })
}
