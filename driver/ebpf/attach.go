package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Names of pinned links. The pin of an instance's link has the link's own name.
const (
	hostPin   = "host"
	uplinkPin = "uplink-"
	tunnelPin = "tunnel"
)

// hooks has the places of the programs. Each attached program has a pinned link.
type hooks struct {
	dir     string // of the pinned links
	objects *steerObjects
}

// attachAgain attaches this build's program to every instance that a former agent connected. It
// detaches the program from devices that are no longer uplinks.
func (h hooks) attachAgain(uplinks []string) error {
	pins, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("look for attached programs: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(h.dir, pin.Name())
		uplink, ok := strings.CutPrefix(pin.Name(), uplinkPin)
		switch {
		case ok && !slices.Contains(uplinks, uplink):
			err = os.Remove(path)
		case ok, pin.Name() == hostPin:
			continue
		case pin.Name() == tunnelPin:
			err = replace(path, h.objects.FromTunnel)
		default:
			err = replace(path, h.objects.FromInstance)
		}
		if err != nil {
			return fmt.Errorf("replace the program at %s: %w", pin.Name(), err)
		}
	}
	return nil
}

// replace puts another program at a pinned link. It unpins the link of a deleted device.
func replace(pin string, p *ebpf.Program) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	if info, err := l.Info(); err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return l.Unpin()
	}
	return l.Update(p)
}

// attach puts a program at a hook, in place of a former agent's program.
func (h hooks) attach(name string, ifindex int, where ebpf.AttachType, p *ebpf.Program) error {
	pin := filepath.Join(h.dir, name)
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		info, err := l.Info()
		if err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == ifindex {
			if !is(info.Program, p) {
				err = l.Update(p)
			}
			l.Close()
			if err != nil {
				return fmt.Errorf("replace the program at %s: %w", name, err)
			}
			return nil
		}
		_ = l.Unpin() // its device was deleted
		l.Close()
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: where})
	if err != nil {
		return fmt.Errorf("attach steering at %s: %w", name, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin steering at %s: %w", name, err)
	}
	return nil
}

// is reports whether a program has an id.
func is(id ebpf.ProgramID, p *ebpf.Program) bool {
	info, err := p.Info()
	if err != nil {
		return false
	}
	own, ok := info.ID()
	return ok && own == id
}

// detach removes the program from a hook, if it has one.
func (h hooks) detach(name string) error {
	err := os.Remove(filepath.Join(h.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// program returns the program of a hook.
func (h hooks) program(at Hook) (*ebpf.Program, error) {
	switch at {
	case FromOutside:
		return h.objects.FromOutside, nil
	case FromHost:
		return h.objects.FromHost, nil
	case FromInstance:
		return h.objects.FromInstance, nil
	case FromTunnel:
		return h.objects.FromTunnel, nil
	case Nothing:
		return h.objects.Nothing, nil
	}
	return nil, fmt.Errorf("there is no hook %q", at)
}
