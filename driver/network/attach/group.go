package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Group is the root of the control groups of version 2. Its programs run for every socket of the
// machine.
type Group struct{ root *os.File }

// OpenGroup opens the root. It needs no mount: machines with version 1 have the groups as well, and
// a namespace may hide them.
func OpenGroup() (*Group, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the control groups of version 2: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("open the control groups of version 2: %w", err)
	}
	at, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root of the control groups: %w", err)
	}
	return &Group{os.NewFile(uintptr(at), "the root of the control groups")}, nil
}

// Attach puts a program in place of a former process's at this pin, or attaches and pins it.
func (g *Group) Attach(pin string, kind ebpf.AttachType, p *ebpf.Program) error {
	was, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		return errors.Join(was.Update(p), was.Close())
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	root := fmt.Sprintf("/proc/self/fd/%d", g.root.Fd())
	l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: kind, Program: p})
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// Close closes the root. The programs run on.
func (g *Group) Close() error { return g.root.Close() }
