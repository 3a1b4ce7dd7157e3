package process

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// grant gives a program the grants of its spec: devices, paths, the network.
func grant(p *wire.Program, s pando.Spec, hidden []string) error {
	for _, g := range s.Grants {
		switch g.Kind() {
		case pando.GrantDevice:
			dev, err := deviceOf(g.Device())
			if err != nil {
				return err
			}
			p.Devices = append(p.Devices, dev)
		case pando.GrantPath:
			at, write := g.Path()
			if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: grants: %s is missing on this host: load its driver, or "+
					"`pando hosts deny` it here", pando.ErrNotFound, at)
			}
			all, err := binds([]pando.Folder{{Path: at, At: at, Write: write}}, hidden)
			if err != nil {
				return fmt.Errorf("grants: %w", err)
			}
			p.Volumes = append(p.Volumes, all...)
		case pando.GrantNetns:
			p.HostNet = true
		}
	}
	return nil
}

// deviceOf returns the device of a name in the host's /dev.
func deviceOf(name string) (pando.Device, error) {
	var st unix.Stat_t
	err := unix.Stat("/dev/"+name, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return pando.Device{}, fmt.Errorf("%w: grants: this host has no /dev/%s: load its driver, or "+
			"`pando hosts deny` it here", pando.ErrNotFound, name)
	}
	if err != nil {
		return pando.Device{}, fmt.Errorf("grants: look at /dev/%s: %w", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return pando.Device{}, fmt.Errorf("%w: grants: /dev/%s is no device", pando.ErrInvalid, name)
	}
	return pando.Device{Name: name, Block: kind == unix.S_IFBLK,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}, nil
}

// sendHold sends a hold, with the network of the host if its program has that.
func sendHold(c *net.UnixConn, q wire.Request) error {
	if q.Run == nil {
		return wire.Send(c, q, -1)
	}
	fd, err := hostNetwork(*q.Run)
	if err != nil {
		return err
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	return wire.Send(c, q, fd)
}

// hostNetwork opens the network of this host for a program that is to have it. -1: it has its own.
func hostNetwork(p wire.Program) (int, error) {
	if !p.HostNet {
		return -1, nil
	}
	ns, err := netns.Get()
	if err != nil {
		return -1, fmt.Errorf("take the network of the host: %w", err)
	}
	return int(ns), nil
}
