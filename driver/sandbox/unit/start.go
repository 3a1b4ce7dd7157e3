package unit

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/thread"
)

// starter starts units from one thread, which lives as long as the group. The kernel ends a unit
// with the thread that started it, so no unit outlives a killed group.
type starter struct {
	ask  chan func()
	here netns.NsHandle
}

func newStarter() (*starter, error) {
	s := &starter{ask: make(chan func())}
	ready := make(chan error)
	thread.Go(func() {
		var err error
		s.here, err = netns.Get()
		ready <- err
		for do := range s.ask {
			do()
		}
		s.here.Close()
	})
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("find the network namespace: %w", err)
	}
	return s, nil
}

// Start implements pando.Units.
func (d *Driver) Start(ctx context.Context, id int) (pando.Unit, error) {
	p := &process{driver: d, id: id}
	started := make(chan error)
	d.starter.ask <- func() { started <- d.inside(p) }
	err := <-started
	if err == nil {
		stop := context.AfterFunc(ctx, p.Kill)
		err = p.ready()
		stop()
	}
	if err != nil {
		p.release()
		_ = os.RemoveAll(d.folder(id)) // Close tries again
		return nil, err
	}
	return p, nil
}

// inside makes a network namespace with one device and starts the unit in it. The namespace ends
// with the unit. It runs on the starter's thread.
func (d *Driver) inside(p *process) error {
	there, err := netns.New()
	if err != nil {
		return fmt.Errorf("make a network namespace for unit %s: %w", p.Name(), err)
	}
	defer there.Close()
	// After an error the thread is of no use, and the next unit's namespace is new anyway.
	defer netns.Set(d.starter.here) //nolint:errcheck // see above
	if err := d.starter.wire(p.Device(), there, d.mtu); err != nil {
		return fmt.Errorf("make the device of unit %s: %w", p.Name(), err)
	}
	if err := os.MkdirAll(d.folder(p.id), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if p.logged, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	arguments := d.arguments(p.id)
	if d.Limits != (pando.Resources{}) {
		entries, err := p.confine()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			arguments = append(arguments, "--cgroup", entry)
		}
	}
	p.command = exec.Command(d.Binary, arguments...)
	p.command.Stderr = log
	p.command.ExtraFiles = append([]*os.File{d.memory.file}, d.memory.bells...)
	if d.sockets != nil {
		p.command.ExtraFiles = append(p.command.ExtraFiles, d.sockets[p.id])
	}
	if p.stdout, err = p.command.StdoutPipe(); err == nil {
		err = p.command.Start()
	}
	if err != nil {
		return fmt.Errorf("start unit %s: %w", p.Name(), err)
	}
	return nil
}

// wire makes the device pair. The unit's end is in the unit's namespace and is called unit.
func (s *starter) wire(device string, there netns.NsHandle, mtu int) error {
	const disableIPv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
	if err := os.WriteFile(disableIPv6, []byte("1"), 0); err != nil && !os.IsNotExist(err) {
		return err
	}
	h, err := netlink.NewHandleAt(s.here)
	if err != nil {
		return err
	}
	defer h.Close()
	// A killed group left it; its namespace is about to disappear.
	if stale, err := h.LinkByName(device); err == nil {
		if err := h.LinkDel(stale); err != nil {
			return err
		}
	}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: device, MTU: mtu},
		PeerName:  "unit", PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(there),
	}
	if err := h.LinkAdd(pair); err != nil {
		return err
	}
	ours, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	// No IPv6 address, because the host sends nothing on this wire.
	if err := h.LinkSetIP6AddrGenMode(ours, 1); err != nil {
		return err
	}
	if err := h.LinkSetUp(ours); err != nil {
		return err
	}
	theirs, err := netlink.LinkByName("unit")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(theirs)
}

// memoryFD is the descriptor of the group's memory in a unit. The eventfds of all units follow it,
// then the unit's UDP socket if it has one.
const memoryFD = 3

// arguments returns the arguments of `pando-unit member`.
func (d *Driver) arguments(id int) []string {
	args := append([]string{"member"}, d.Functions...)
	args = append(args, "--iface", "unit", "--name", d.Name(id), "--tenant", d.Tenant,
		"--unit", fmt.Sprint(id), "--ports", fmt.Sprintf("%d-%d", d.Ports[0], d.Ports[1]),
		"--gap-ns", fmt.Sprint(int64(d.Gap)), "--memory-fd", fmt.Sprint(memoryFD),
		"--nominal-bits", fmt.Sprint(d.UnitBits), "--run-dir", d.RunDir, "--data-dir", d.DataDir)
	if d.Limits.MemoryBytes > 0 {
		args = append(args, "--unit-memory-mib", fmt.Sprint(d.Limits.MemoryBytes>>20))
	}
	if d.Limits.CPUs > 0 {
		args = append(args, "--unit-cpus", fmt.Sprint(d.Limits.CPUs))
	}
	if d.Limited {
		args = append(args, "--capacity-bits", fmt.Sprint(d.UnitBits))
	}
	if d.Chaos != "" {
		args = append(args, "--chaos", fmt.Sprintf("%s,%d", d.Chaos, 1+id))
	}
	if d.OutputLog {
		args = append(args, "--output-log", fmt.Sprint(pando.LogUnit))
	}
	if d.Store != "" {
		args = append(args, "--state-store", d.Store)
	}
	if d.sockets != nil {
		args = append(args, "--udp-fd", fmt.Sprint(memoryFD+1+len(d.memory.bells)),
			"--peers", strings.Join(d.addresses, ","))
	}
	return append(args, d.Flags...)
}
