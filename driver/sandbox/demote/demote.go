// Package demote starts a program of root again without root's rights: as another user, with few
// capabilities, and with writes below a few folders only.
//
// It never takes rights from a part of a process. The program is started again in the same process,
// so its supervisor sees no end.
package demote

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights are what a program keeps.
type Rights struct {
	User  uint32
	Group uint32 // its only group
	// Capabilities are those that it keeps, such as unix.CAP_CHOWN, as far as it has them.
	Capabilities []int
	// Folders are where it may write, besides /dev/null.
	Folders []string
}

// ErrNoLandlock: the kernel does not bound where a program writes. Its capabilities are bounded.
var ErrNoLandlock = errors.New("this kernel has no Landlock, so writes are not bounded to folders")

// Exec replaces this process by the program self with these rights. It returns only an error. warn
// receives ErrNoLandlock.
func Exec(r Rights, self string, args, environ []string, warn func(error)) error {
	runtime.LockOSThread() // the rights are this thread's until the program starts on it
	fence, err := landlock(r.Folders)
	if errors.Is(err, ErrNoLandlock) {
		warn(err)
	} else if err != nil {
		return fmt.Errorf("bound the folders of a program: %w", err)
	}
	if err := r.drop(); err != nil {
		return fmt.Errorf("give root's rights up: %w", err)
	}
	if fence >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fence), 0, 0); errno != 0 {
			return fmt.Errorf("bound the folders of a program: %w", errno)
		}
	}
	return fmt.Errorf("start %s again: %w", self, syscall.Exec(self, args, environ))
}

// drop changes the user and the capabilities of this thread. No program gets more back: not by a
// setuid file, and not by a file with capabilities.
func (r Rights) drop() error {
	kept, err := r.kept()
	if err != nil {
		return err
	}
	for c := 0; ; c++ {
		if kept[c/32]&(1<<(c%32)) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err == unix.EINVAL || c == 63 {
			break // the kernel's last one
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	// The calls of package syscall would change all threads.
	id, group := uintptr(r.User), uintptr(r.Group)
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, group, group, group}, {unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return errno
		}
	}
	data := [2]unix.CapUserData{}
	for n := range data {
		data[n] = unix.CapUserData{Effective: kept[n], Permitted: kept[n], Inheritable: kept[n]}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return err
	}
	for c := range 64 {
		if kept[c/32]&(1<<(c%32)) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// kept returns the capabilities to keep, of those that this thread has.
func (r Rights) kept() (words [2]uint32, err error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&head, &has[0]); err != nil {
		return words, err
	}
	for _, c := range r.Capabilities {
		words[c/32] |= 1 << (c % 32) & has[c/32].Permitted
	}
	return words, nil
}

// writes are the accesses of Landlock that change something. The rest is not bounded.
const writes = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
	unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR |
	unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
	unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
	unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM

// landlock returns a ruleset that allows writes below the folders. -1: there is none.
func landlock(folders []string) (fd int, err error) {
	const versionOnly = 1
	abi, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, versionOnly)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return -1, ErrNoLandlock
	} else if errno != 0 {
		return -1, errno
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: writes}
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return -1, errno
	}
	for _, dir := range folders {
		if err := allow(set, dir, attr.Handled_access_fs); err != nil {
			return -1, err
		}
	}
	const ofFiles = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	return int(set), allow(set, os.DevNull, attr.Handled_access_fs&ofFiles)
}

func allow(set uintptr, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("%s: %w", path, errno)
	}
	return nil
}
