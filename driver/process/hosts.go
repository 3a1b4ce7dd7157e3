package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const hostsFile = "/etc/hosts"

// hostname returns the name of the machine that an instance sees. Programs name their data by it,
// so it stays for instances with a volume of their own, over all their starts.
func hostname(spec pando.SandboxSpec) string {
	i := spec.Instance
	switch beside := i.Run != nil && i.Run.Beside; {
	case spec.Spec.Hostname != "":
		return spec.Spec.Hostname
	case i.Ordinal > 0 && !beside:
		return pando.OrdinalName(spec.Spec.Name, i.Ordinal)
	}
	return string(i.ID)
}

// hosts returns the text of /etc/hosts of a program: this machine by its own name, the names of the
// spec, and then the lines of the host, for its own programs. The own name has no IPv6 address,
// because a program that listens by IPv4 alone would not answer there.
func (p program) hosts(host string) string {
	var all strings.Builder
	all.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	if p.Hostname != "" {
		at := netip.AddrFrom4([4]byte{127, 0, 1, 1}) // in the network of the host
		if p.Address.IsValid() && !p.HostNet {
			at = p.Address
		}
		names := p.Hostname
		if short, _, full := strings.Cut(names, "."); full {
			names += " " + short
		}
		all.WriteString(at.String() + " " + names + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Hosts)) {
		all.WriteString(p.Hosts[name] + " " + name + "\n")
	}
	if host = strings.TrimRight(host, "\n"); host != "" {
		all.WriteString(host + "\n")
	}
	return all.String()
}

// nameMachine gives a program its own /etc/hosts and /etc/hostname below its root, in place of
// those of its image or of the host, and the link /etc/mtab if it has none.
func nameMachine(p program, top string) error {
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("name the sandbox: %w", err)
	}
	host := ""
	if p.Layers == nil {
		text, err := os.ReadFile(top + hostsFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", hostsFile, err)
		}
		host = string(text)
	}
	root, err := unix.Open(top+"/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	etc, err := folderIn(root, "etc", p.outside(0))
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	for name, text := range map[string]string{
		"hosts": p.hosts(host), "hostname": p.Hostname + "\n",
	} {
		// Of the host's: its own, and again if the command names it.
		for unix.Unmount(top+"/etc/"+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		}
		fd, err := ownFile(etc, name, text, p.outside(0))
		if err != nil {
			return fmt.Errorf("write /etc/%s: %w", name, err)
		}
		unix.Close(fd)
	}
	err = unix.Symlinkat("/proc/self/mounts", etc, "mtab")
	if err != nil && err != unix.EEXIST {
		return fmt.Errorf("make /etc/mtab: %w", err)
	}
	return nil
}

// ownFile makes a file of a folder anew, in place of a file or link there.
func ownFile(dir int, name, text string, owner uint32) (int, error) {
	if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
		return -1, err
	}
	return plainFile(dir, name, text, owner)
}
