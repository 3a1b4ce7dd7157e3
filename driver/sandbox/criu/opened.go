package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/thread"
)

// Kinds of open files, as CRIU numbers them. The other kinds are devices, terminals, namespaces,
// raw sockets, programs of BPF, and files from outside the sandbox.
const (
	kindRegular = 1
	kindPIDFD   = 20
)

var mayHave = map[uint32]bool{kindRegular: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true,
	8: true, 9: true, 13: true, 17: true, 18: true, kindPIDFD: true}

// remaps reads the deleted files that the program has open.
func (r *rights) remaps(all []os.DirEntry) error {
	const of, kind, ghost = 1, 3, 1
	entries, err := r.list("remap-fpath.img")
	if err != nil {
		return err
	}
	for _, m := range entries {
		id, _, err := m.number(of)
		is, _, err2 := m.number(kind)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if is != ghost {
			return fmt.Errorf("a deleted file of kind %d", is)
		}
		r.ghosts[id] = true
	}
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "ghost-file-") {
			if err := ghostFile(filepath.Join(r.Dir, e.Name())); err != nil {
				return fmt.Errorf("%s: %w", e.Name(), err)
			}
		}
	}
	return nil
}

// list reads a file that may be missing.
func (r *rights) list(name string) ([]message, error) {
	out, err := entries(filepath.Join(r.Dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out, err
}

// ghostFile checks a deleted file: CRIU makes it anew. Its content follows its description.
func ghostFile(path string) error {
	const mode = 3
	m, err := firstEntry(path)
	if err != nil {
		return err
	}
	is, _, err := m.number(mode)
	if err != nil {
		return err
	}
	switch kind := is & unix.S_IFMT; {
	case kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFIFO:
		return fmt.Errorf("a device or a link, of mode %o", is)
	case is&(unix.S_ISUID|unix.S_ISGID) != 0 && kind != unix.S_IFDIR:
		return fmt.Errorf("a program with the rights of its owner, of mode %o", is)
	}
	return nil
}

// files reads the open files.
func (r *rights) files([]os.DirEntry) error {
	const kind = 1
	all, err := entries(filepath.Join(r.Dir, "files.img"))
	if err != nil {
		return err
	}
	for _, m := range all {
		is, _, err := m.number(kind)
		if err == nil && !mayHave[is] {
			err = fmt.Errorf("an open file of kind %d, which is a device, a terminal, a namespace or a "+
				"raw socket", is)
		}
		if err == nil && is == kindRegular {
			err = r.regular(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// regular notes a regular file, a folder or a device by its number.
func (r *rights) regular(m message) error {
	const regular, id, flags, name, external, mode = 3, 1, 2, 6, 9, 10
	of, there, err := m.sub(regular)
	if err == nil && !there {
		err = errMalformed
	}
	if err != nil {
		return err
	}
	n, _, err1 := of.number(id)
	text, _, err2 := of.text(name)
	how, _, err3 := of.number(flags)
	outside, _, err4 := of.number(external)
	is, _, err5 := of.number(mode)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	switch {
	case outside != 0:
		return fmt.Errorf("a file %q from outside the sandbox", text)
	case r.opened[n] != nil:
		return fmt.Errorf("two files of the number %d", n)
	case !filepath.IsAbs(string(text)):
		return fmt.Errorf("a file %q", text)
	}
	r.opened[n] = &file{name: string(text), flags: how, mode: is}
	return nil
}

// mappings reads the files that the memory of the program maps. CRIU opens each as its mapping
// says.
func (r *rights) mappings(all []os.DirEntry) error {
	const areas, number, prot, flags, status, opened = 14, 4, 5, 6, 7, 10
	const ofFile, ofPlugin = 1<<6 | 1<<7, 1 << 27
	return r.each(all, "mm-", func(_ string, m message) error {
		for _, v := range m[areas] {
			one, err := decode(v.bytes)
			if err != nil {
				return err
			}
			id, _, err1 := one.long(number)
			how, _, err2 := one.number(prot)
			kind, _, err3 := one.number(flags)
			is, _, err4 := one.number(status)
			by, _, err5 := one.number(opened)
			if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
				return err
			}
			if is&ofPlugin != 0 {
				return errors.New("memory of a device")
			}
			shared := kind&unix.MAP_SHARED != 0 && how&unix.PROT_WRITE != 0
			if is&ofFile != 0 && (shared || by&unix.O_ACCMODE != unix.O_RDONLY) {
				r.writes[uint32(id)] = true
			}
		}
		return nil
	})
}

// ofProcess are files of proc(5) about the program itself. They are there once it runs.
var ofProcess = regexp.MustCompile(`^/proc/(\d+)/(?:task/(\d+)/)?(?:maps|smaps|smaps_rollup|stat|` +
	`statm|status|cmdline|comm|io|limits|mountinfo|mounts|cgroup)$`)

// mayOpen checks that the user of the program may open its files in the sandbox. CRIU opens them as
// root.
func (r *rights) mayOpen() error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", r.Inside),
		unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the files of the sandbox: %w", err)
	}
	defer unix.Close(root)
	return asUser(r.UID, r.GID, func() error {
		for id, f := range r.opened {
			if r.ghosts[id] || r.about(f) {
				continue
			}
			if err := f.access(root, r.writes[id]); err != nil {
				return fmt.Errorf("%w: the frozen program has %s open, and its user %d may not open it "+
					"here: %w; let it close the file on the event `snapshot`", pando.ErrRefused, f.name,
					r.UID, err)
			}
		}
		return nil
	})
}

// about reports whether a file is one of proc(5) about the program, opened to read.
func (r *rights) about(f *file) bool {
	m := ofProcess.FindStringSubmatch(f.name)
	if m == nil || f.flags&unix.O_ACCMODE != unix.O_RDONLY {
		return false
	}
	for _, text := range m[1:] {
		n, err := strconv.ParseUint(text, 10, 32)
		if _, own := r.leader[uint32(n)]; text != "" && (err != nil || !own) {
			return false
		}
	}
	return true
}

// access checks a file for the user of this thread, without opening it: a device or a pipe could
// act on that.
func (f *file) access(root int, writes bool) error {
	fd, err := unix.Openat2(root, f.name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if f.flags&unix.O_PATH != 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mode := uint32(unix.R_OK)
	switch how := f.flags & unix.O_ACCMODE; {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // a program may be in a folder that it cannot list
		mode = unix.X_OK
	case how == unix.O_WRONLY:
		mode = unix.W_OK
	case how != unix.O_RDONLY:
		mode |= unix.W_OK
	}
	if writes {
		mode |= unix.W_OK
	}
	return unix.Faccessat2(fd, "", mode, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
}

// asUser calls f on a thread of a user without groups and capabilities. The thread ends with it.
func asUser(uid, gid uint32, f func() error) error {
	var err error
	thread.Run(func() {
		u, g := uintptr(uid), uintptr(gid)
		// The calls of package syscall would change every thread.
		if _, _, failed := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); failed != 0 {
			err = fmt.Errorf("leave the groups of root: %w", failed)
			return
		}
		if _, _, failed := syscall.RawSyscall(unix.SYS_SETRESGID, g, g, g); failed != 0 {
			err = fmt.Errorf("take the group of the program: %w", failed)
			return
		}
		if _, _, failed := syscall.RawSyscall(unix.SYS_SETRESUID, u, u, u); failed != 0 {
			err = fmt.Errorf("take the user of the program: %w", failed)
			return
		}
		// Root keeps its capabilities otherwise.
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if failed := unix.Capset(&h, &none[0]); failed != nil {
			err = fmt.Errorf("give up capabilities: %w", failed)
			return
		}
		err = f()
	})
	return err
}
