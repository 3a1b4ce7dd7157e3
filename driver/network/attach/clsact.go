package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of filters. The kernel runs the lowest first.
const (
	priorityFirst = 1
	priority      = 2
)

// filter names a filter of a device's clsact queue.
type filter struct {
	ifIndex  int
	egress   bool
	priority uint16
}

// note is the text of a pin: the device, the direction and the priority.
const note = "clsact:%d:%t:%d"

// readNote returns the filter that a pin names.
func readNote(pin string) (f filter, ok bool) {
	text, err := os.Readlink(pin)
	if err != nil {
		return f, false
	}
	_, err = fmt.Sscanf(text, note, &f.ifIndex, &f.egress, &f.priority)
	return f, err == nil
}

// attachFilter makes a filter and its note.
func attachFilter(at Place, p *ebpf.Program) (*Hook, error) {
	f := filter{ifIndex: at.IfIndex, egress: at.Egress, priority: priority}
	if at.First {
		f.priority = priorityFirst
	}
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: at.IfIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("add a clsact queue: %w", err)
	}
	// The note comes first: a filter without a note would outlive everything.
	if at.Pin != "" {
		text := fmt.Sprintf(note, f.ifIndex, f.egress, f.priority)
		if err := os.Symlink(text, at.Pin); err != nil {
			return nil, fmt.Errorf("pin it: %w", err)
		}
	}
	if err := f.set(p); err != nil {
		if at.Pin != "" {
			err = errors.Join(err, os.Remove(at.Pin))
		}
		return nil, err
	}
	return &Hook{filter: f, pinned: at.Pin != ""}, nil
}

// attributes name the filter to the kernel.
func (f filter) attributes() netlink.FilterAttrs {
	parent := uint32(netlink.HANDLE_MIN_INGRESS)
	if f.egress {
		parent = netlink.HANDLE_MIN_EGRESS
	}
	return netlink.FilterAttrs{LinkIndex: f.ifIndex, Parent: parent, Handle: 1,
		Protocol: unix.ETH_P_ALL, Priority: f.priority}
}

// set makes the filter run a program, in place of a former one.
func (f filter) set(p *ebpf.Program) error {
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: f.attributes(), Fd: p.FD(), Name: "pando", DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("set a filter of clsact: %w", err)
	}
	return nil
}

// gone reports whether the device was deleted.
func (f filter) gone() bool {
	_, err := netlink.LinkByIndex(f.ifIndex)
	return errors.As(err, &netlink.LinkNotFoundError{})
}

// remove deletes the filter, and the queue if no other filter uses it.
func (f filter) remove() error {
	if f.gone() {
		return nil
	}
	err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: f.attributes()})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("delete a filter of clsact: %w", err)
	}
	l, err := netlink.LinkByIndex(f.ifIndex)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the device of a filter of clsact: %w", err)
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if others, err := netlink.FilterList(l, parent); err != nil || len(others) > 0 {
			return nil
		}
	}
	return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: f.ifIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
}
