package front

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"pando.run/pando"
)

// localPin begins the names of the pins of programs for the host's own clients.
const localPin = "local"

// ServeLocal lets the programs of this host reach its ports: by the own address, localhost or ::1.
// They connect to the VIP without noticing. The error names a kernel or a machine without a cgroup2
// mount; the ports serve all other clients nevertheless.
func (f *Steering) ServeLocal() error {
	root, err := mountOfCgroup2()
	if err != nil {
		return err
	}
	for _, at := range []struct {
		pin     string
		kind    ebpf.AttachType
		program *ebpf.Program
	}{
		{localPin + "4", ebpf.AttachCGroupInet4Connect, f.objects.Connects4},
		{localPin + "6", ebpf.AttachCGroupInet6Connect, f.objects.Connects6},
	} {
		if err := attachLocal(filepath.Join(f.links(), at.pin), root, at.kind, at.program); err != nil {
			return fmt.Errorf("let programs of this host reach its ports: %w", err)
		}
	}
	return nil
}

// attachLocal puts a program in place of a former agent's, or pins a new link.
func attachLocal(pin, root string, kind ebpf.AttachType, p *ebpf.Program) error {
	was, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		return errors.Join(was.Update(p), was.Close())
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: kind, Program: p})
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// mountOfCgroup2 returns the folder at which the control groups of version 2 are mounted.
func mountOfCgroup2() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 2 && words[2] == "cgroup2" {
			return words[1], nil
		}
	}
	return "", fmt.Errorf("%w: cgroup2 is not mounted", pando.ErrNotFound)
}
