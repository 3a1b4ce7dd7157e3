package shim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// bindTo mounts the target of one descriptor at that of another.
func bindTo(from, to int) error {
	tree, err := unix.OpenTree(from, "",
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// pivot makes a mount the root of this mount namespace, and drops the former root with everything
// below it.
func pivot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the image: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make the image the root (pivot_root): %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's files: %w", err)
	}
	return os.Chdir("/")
}

// resolvBytesMax bounds resolv.conf. Resolvers read no more of it.
const resolvBytesMax = 16 << 10

// settleInImage makes the working directory of a program if its image has none.
func settleInImage(p wire.Program) error {
	if st, err := os.Stat(p.Dir); err == nil && st.IsDir() {
		return nil
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if fd, err := folderIn(root, path.Clean(p.Dir)[1:], p.IDOutside(0)); err == nil {
		unix.Close(fd)
	} else {
		return fmt.Errorf("make the working directory %s in the image: %w", p.Dir, err)
	}
	return os.Chown(p.Dir, int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID)))
}

// enter makes the files of an image the root of the sandbox: its layers, and above them a folder in
// memory for what the instance writes. Nothing of the host's files stays visible.
func (s *shim) enter(p wire.Program) error {
	if s.entrance.layers < 0 {
		return fmt.Errorf("%w: this sandbox was made for programs of the host only",
			pando.ErrUnsupported)
	}
	volumes, err := s.takeVolumes(p)
	if err != nil {
		return err
	}
	root, err := s.stack(p)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if p.Runtime != "" {
		return s.furnishForRuntime(p, root, volumes)
	}
	for _, dir := range []string{"proc", "dev", "sys"} {
		if err := carry(root, dir, p.IDOutside(0)); err != nil {
			return fmt.Errorf("bring /%s into the image: %w", dir, err)
		}
	}
	if err := s.supply(root, p.IDOutside(0)); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	for _, fd := range []int{s.entrance.layers, s.entrance.self, s.entrance.resolv} {
		unix.Close(fd)
	}
	s.entrance = entrance{-1, -1, -1}
	if err := mountVolumes(volumes, p, ""); err != nil {
		return err
	}
	if err := settleInImage(p); err != nil {
		return err
	}
	if err := giveDevices(p); err != nil {
		return err
	}
	err = errors.Join(nameMachine(p, ""), makeDevices(p.Devices), s.keepSecrets(p),
		s.keepConfigs(p))
	if err != nil || !p.ReadOnly {
		return err
	}
	return readOnly("/", 0)
}

// keepEntrance opens the folders of an image's files while they are visible.
func (s *shim) keepEntrance(f wire.Furniture) error {
	s.entrance = entrance{-1, -1, -1}
	if f.Layers == "" {
		return nil
	}
	for path, fd := range map[string]*int{
		f.Layers: &s.entrance.layers, f.Self: &s.entrance.self, f.Resolv: &s.entrance.resolv,
	} {
		var err error
		how := unix.O_PATH | unix.O_CLOEXEC
		if path == f.Resolv {
			how = unix.O_RDONLY | unix.O_CLOEXEC // it is read, and copied
		}
		if *fd, err = unix.Open(path, how, 0); err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
	}
	return nil
}

// stack mounts the layers, the highest first, and returns their root.
func (s *shim) stack(p wire.Program) (int, error) {
	for _, dir := range []string{stage, "upper", "work", "root"} {
		dir = path.Join(stage, strings.TrimPrefix(dir, stage))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return -1, fmt.Errorf("make room for an image: %w", err)
		}
		if dir == stage {
			if err := unix.Mount("tmpfs", dir, "tmpfs", plain, "mode=755,"+coverLarge); err != nil {
				return -1, fmt.Errorf("make room for an image: %w", err)
			}
		}
	}
	layers, err := stackable(p, s.entrance.layers, s.users)
	if err != nil {
		return -1, err
	}
	defer func() { _ = os.Chdir("/") }()
	// The layers and the upper folder lie on two file systems. Without xino a file has another device
	// than its folder, and another inode once it is written to: programs take a hard link for two files.
	options := fmt.Sprintf("xino=on,lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work",
		strings.Join(layers, ":"),
		stage)
	err = unix.Mount("overlay", path.Join(stage, "root"), "overlay", plain, options)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: this kernel has no overlayfs", pando.ErrUnsupported)
	}
	if err != nil {
		return -1, fmt.Errorf("stack %d layers of an image: %w", len(layers), err)
	}
	root, err := unix.Open(path.Join(stage, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the root of an image: %w", err)
	}
	return root, nil
}

// supply puts the instance's sockets and its name server into an image, and a /tmp if it has none.
func (s *shim) supply(root int, owner uint32) error {
	to, err := folderIn(root, "run/pando", owner)
	if err == nil {
		err = bindTo(s.entrance.self, to)
		unix.Close(to)
	}
	if err != nil {
		return fmt.Errorf("bring the instance's sockets into the image: %w", err)
	}
	etc, err := folderIn(root, "etc", owner)
	if err != nil {
		return fmt.Errorf("bring a name server into the image: %w", err)
	}
	defer unix.Close(etc)
	resolv := make([]byte, resolvBytesMax)
	n, err := unix.Pread(s.entrance.resolv, resolv, 0)
	if err == nil {
		to, err = ownFile(etc, "resolv.conf", string(resolv[:n]), owner)
	}
	if err != nil {
		return fmt.Errorf("bring a name server into the image: %w", err)
	}
	unix.Close(to)
	var st unix.Stat_t
	if unix.Fstatat(root, "tmp", &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
		err = errors.Join(unix.Mkdirat(root, "tmp", 0o777), unix.Fchmodat(root, "tmp", 0o1777, 0))
	}
	if err != nil {
		return fmt.Errorf("make the image's own files: %w", err)
	}
	return nil
}

// stackable enters the folder of the layers of a program, and returns their names there. The names
// are short, because the kernel takes one page of options.
func stackable(p wire.Program, folder, users int) ([]string, error) {
	if p.Users == nil {
		if err := unix.Fchdir(folder); err != nil {
			return nil, fmt.Errorf("find the layers of an image: %w", err)
		}
		return p.Layers, nil
	}
	// The root of the image is the upper folder's. Its owner is root inside.
	if err := os.Chown(stage+"/upper", int(p.IDOutside(0)), int(p.IDOutside(0))); err != nil {
		return nil, err
	}
	var names []string
	for i, layer := range p.Layers {
		tree, err := unix.OpenTree(folder, layer,
			unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, fmt.Errorf("take the layers of an image: %s: %w", layer, err)
		}
		name := strconv.Itoa(i)
		at := path.Join(stage, "layers", name)
		err = os.MkdirAll(at, 0o755)
		if err == nil {
			err = mapUsers(tree, users, "the layers of images maps no users; move `--data-dir` to "+
				"ext4, XFS or btrfs, or set `userns_mode: host` in the spec")
		}
		if err == nil {
			err = unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		unix.Close(tree)
		if err != nil {
			return nil, fmt.Errorf("take the layers of an image: %s: %w", layer, err)
		}
		names = append(names, name)
	}
	return names, os.Chdir(stage + "/layers")
}

// stage is where a shim puts the files of an image together, in the sandbox's own /run.
const stage = "/run/image"
