package process

import (
	"fmt"
	"os"
	"syscall"
)

// Writable reports whether a program with this user of a spec may make files in a folder of this
// host. It checks the folder's owner and mode, not its access lists.
func Writable(dir, user string) (bool, error) {
	uid, gid, err := identity(user, uidFirst)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return false, fmt.Errorf("look at the folder of a program: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return false, nil
	}
	switch {
	case uid == 0:
		return true, nil
	case uid == st.Uid:
		return info.Mode()&0o200 != 0, nil
	case gid == st.Gid:
		return info.Mode()&0o020 != 0, nil
	}
	return info.Mode()&0o002 != 0, nil
}
