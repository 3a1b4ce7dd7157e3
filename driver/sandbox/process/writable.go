package process

import (
	"fmt"
	"os"
	"syscall"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// Writable reports whether the program of a spec may make files in its working directory on this
// host. It checks the folder's owner and mode, not its access lists.
func Writable(s pando.Spec) (bool, error) {
	uid, gid, err := identity(s.User, uidFirst)
	if err != nil {
		return false, err
	}
	if ownUsers(s, uid) {
		of := wire.Users{First: wire.UsersFirst}
		uid, gid = of.Outside(uid), of.Outside(gid)
	}
	info, err := os.Stat(s.WorkingDir)
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
