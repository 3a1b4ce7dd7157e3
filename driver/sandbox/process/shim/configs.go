package shim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// changeConfig stages a new content of a config, or installs the staged one and signals the program.
// It returns the name if a new content is staged or installed.
func (s *shim) changeConfig(c pando.ConfigFile, install bool, sig unix.Signal) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil || s.configs.mount == nil {
		return nil, fmt.Errorf("%w: the instance began without configs; replace it with a new deploy",
			pando.ErrUnsupported)
	}
	in, candidate := int(s.configs.mount.Fd()), path.Join(next, c.Name)
	if install {
		if err := unix.Renameat(in, candidate, in, c.Name); err != nil {
			return nil, fmt.Errorf("replace the config %s: %w", c.Name, err)
		}
		return []string{c.Name}, hint(s.pid, sig)
	}
	if s.configs.has(c.Name, c.Content) {
		_ = unix.Unlinkat(in, candidate, 0) // refused before
		return nil, nil
	}
	if err := s.configs.put(candidate, c.Content, os.FileMode(c.Mode), *s.program); err != nil {
		return nil, fmt.Errorf("write the config %s: %w", c.Name, err)
	}
	return []string{c.Name}, nil
}

// keepConfigs gives the program its configs as files in memory, and their targets as links to them.
func (s *shim) keepConfigs(p wire.Program) error {
	if len(p.Configs) == 0 {
		return nil
	}
	held, err := holdFiles(pando.ConfigsFolder, "mode=755,size=2m")
	if err == nil {
		err = unix.Mkdirat(int(held.mount.Fd()), next, 0o755)
	}
	if err != nil {
		return fmt.Errorf("keep the configs in %s: %w", pando.ConfigsFolder, err)
	}
	s.configs = held
	for _, c := range p.Configs {
		if err := s.configs.put(c.Name, c.Content, os.FileMode(c.Mode), p); err != nil {
			return fmt.Errorf("keep the config %s: %w", c.Name, err)
		}
		if c.Target == "" {
			continue
		}
		err := linkAt(s.top, c.Target, path.Join(pando.ConfigsFolder, c.Name), p.IDOutside(0))
		if err != nil {
			return fmt.Errorf("show the config %s at %s: %w", c.Name, c.Target, err)
		}
	}
	return readOnly(pando.ConfigsFolder, 0)
}

// linkAt makes a link in the instance's own files, in place of the file there. A folder of the
// host, a bundle or a volume would keep the link after the instance, so it is refused.
func linkAt(top, at, to string, owner uint32) error {
	root, err := unix.Open(top+"/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	parent, err := folderIn(root, cmp.Or(strings.TrimPrefix(path.Dir(at), "/"), "."), owner)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	var here, base unix.Stat_t
	if err := errors.Join(unix.Fstat(parent, &here), unix.Fstat(root, &base)); err != nil {
		return err
	}
	if here.Dev != base.Dev {
		return fmt.Errorf("%w: its folder is the host's, a volume or in memory: leave `target` out, "+
			"and read %s", pando.ErrRefused, to)
	}
	place := path.Join(wire.DescriptorPath(parent), path.Base(at))
	_ = unix.Unmount(place, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // a file of the host
	if err := unix.Unlinkat(parent, path.Base(at), 0); err != nil && err != unix.ENOENT {
		return err
	}
	return unix.Symlinkat(to, parent, path.Base(at))
}

// next is the folder of candidates, below the folder of the configs.
var next = path.Base(pando.ConfigsNext)
