// Package attach runs BPF programs on the packets of network devices. A program with a pin outlives
// its process.
//
// Kernels from 6.6 on have tcx links, which are pinned. On older kernels a filter of the device's
// clsact queue runs the program, and the pin is a note: a symbolic link that names the filter. A
// tool that deletes all filters of a device deletes that one as well; a tcx link is safe from it.
package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Place is where a program runs.
type Place struct {
	// Pin is a path in a bpffs. A program with a pin runs on until Detach or the end of its device.
	// "": it runs until Close.
	Pin     string
	IfIndex int  // of the device
	Egress  bool // on the packets that leave; else on those that arrive
	First   bool // before the programs of all other places
	// Clsact uses a filter, as every kernel before 6.6 does.
	Clsact bool
}

// Hook is an attached program.
type Hook struct {
	link   link.Link // nil: it is a filter
	filter filter
	pinned bool
}

// Attach runs a program at a place. It replaces the program of a former process with this pin, so
// that every packet meets one of the two.
func Attach(at Place, p *ebpf.Program) (*Hook, error) {
	if h, err := again(at, p); h != nil || err != nil {
		return h, err
	}
	if at.Clsact {
		return attachFilter(at, p)
	}
	where, anchor := ebpf.AttachTCXIngress, link.Anchor(nil)
	if at.Egress {
		where = ebpf.AttachTCXEgress
	}
	if at.First {
		anchor = link.Head()
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: at.IfIndex, Program: p, Attach: where, Anchor: anchor,
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return attachFilter(at, p)
	}
	if err != nil {
		return nil, err
	}
	h := &Hook{link: l, pinned: at.Pin != ""}
	if h.pinned {
		if err := l.Pin(at.Pin); err != nil {
			return nil, errors.Join(fmt.Errorf("pin it: %w", err), l.Close())
		}
	}
	return h, nil
}

// again replaces the program of a former process. It returns nil if the pin has none, or one of
// another device.
func again(at Place, p *ebpf.Program) (*Hook, error) {
	if at.Pin == "" {
		return nil, nil
	}
	if f, ok := readNote(at.Pin); ok {
		if f.ifIndex != at.IfIndex {
			return nil, os.Remove(at.Pin) // its device was deleted
		}
		return &Hook{filter: f, pinned: true}, f.set(p)
	}
	l, err := link.LoadPinnedLink(at.Pin, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil: // the link may be there: a second program beside it would do its work twice
		return nil, fmt.Errorf("open the pinned program %s: %w", at.Pin, err)
	}
	info, err := l.Info()
	if err != nil || info.TCX() == nil || int(info.TCX().Ifindex) != at.IfIndex {
		return nil, errors.Join(l.Unpin(), l.Close())
	}
	if !is(info.Program, p) {
		if err := l.Update(p); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return &Hook{link: l, pinned: true}, nil
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

// Close ends a program without a pin, and lets go of one with a pin.
func (h *Hook) Close() error {
	if h.link != nil {
		return h.link.Close()
	}
	if h.pinned {
		return nil
	}
	return h.filter.remove()
}

// Replace puts another program at a pin, on its device. It removes the pin if the device was
// deleted.
func Replace(pin string, p *ebpf.Program) error {
	if f, ok := readNote(pin); ok {
		if f.gone() {
			return os.Remove(pin)
		}
		return f.set(p)
	}
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return l.Unpin()
	}
	return l.Update(p)
}

// Detach ends the program of a pin. A pin without one is no error. The kernel ends a tcx link a
// moment later, so that no caller waits for the packets on their way.
func Detach(pin string) error {
	var err error
	if f, ok := readNote(pin); ok {
		err = f.remove()
	}
	if gone := os.Remove(pin); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// DetachAll ends the programs of all pins in a folder.
func DetachAll(dir string) error {
	var errs []error
	pins, _ := filepath.Glob(filepath.Join(dir, "*")) // its only error is a bad pattern
	for _, pin := range pins {
		errs = append(errs, Detach(pin))
	}
	return errors.Join(errs...)
}
