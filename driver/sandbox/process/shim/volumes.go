package shim

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// copied is a copy of a volume's mount in no namespace, until the sandbox has its own root.
type copied struct {
	at     string
	tree   int
	folder bool // not a file
	write  bool
	shared bool
	fills  int // descriptor of a volume that is to be filled; 0: none
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

// mountMemory mounts a folder in memory. The sockets of the instance stay visible in it.
func mountMemory(to int, at, options string, noExec bool) error {
	if at != path.Dir(socketsFolder) {
		flags := uintptr(plain)
		if noExec {
			flags = inert
		}
		return unix.Mount("tmpfs", wire.DescriptorPath(to), "tmpfs", flags, options)
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

// mountVolumes mounts the volumes and the folders in memory of a program below its root, or below
// that of the sandbox for "", outer ones first. No link of its files leads elsewhere.
func mountVolumes(all []copied, p wire.Program, top string) error {
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
			strconv.FormatUint(uint64(cmp.Or(t.Mode, 0o1777)), 8), p.IDOutside(p.UID),
			p.IDOutside(p.GID))
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
		to, err := s.place(root, s.at[1:], p.IDOutside(0))
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

// takeVolumes locks the volumes of a program while the host's root is visible. The shim keeps their
// descriptors, so the locks end with the sandbox.
func (s *shim) takeVolumes(p wire.Program) ([]copied, error) {
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
		fd, err := wire.HoldVolume(host, v, unix.RESOLVE_IN_ROOT)
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
		if err == nil && p.MapsUsers(v) {
			err = mapUsers(tree, s.users, v.Cure())
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

// socketsFolder is the folder of the instance's sockets.
const socketsFolder = "/run/pando"
