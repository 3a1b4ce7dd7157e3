package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const hostsFile = "/etc/hosts"

// addHosts adds the names of a program to the instance's own copy of /etc/hosts, below its root.
func addHosts(p program, top string) error {
	if len(p.Hosts) == 0 {
		return nil
	}
	text, err := os.ReadFile(top + hostsFile)
	if err != nil {
		return fmt.Errorf("read %s: %w", hostsFile, err)
	}
	var all strings.Builder
	all.WriteString(strings.TrimRight(string(text), "\n") + "\n")
	for _, name := range slices.Sorted(maps.Keys(p.Hosts)) {
		all.WriteString(p.Hosts[name] + " " + name + "\n")
	}
	_ = unix.Unmount(top+hostsFile, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // the host's
	etc, err := unix.Open(top+"/etc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	if err := unix.Unlinkat(etc, "hosts", 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("write %s: %w", hostsFile, err)
	}
	fd, err := plainFile(etc, "hosts", all.String(), p.outside(0))
	if err != nil {
		return fmt.Errorf("write %s: %w", hostsFile, err)
	}
	return errors.Join(unix.Close(fd))
}
