package units

import (
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/flowlet"
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
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this function
		var err error
		s.here, err = netns.Get()
		ready <- err
		for do := range s.ask {
			do()
		}
		s.here.Close()
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("find the network namespace: %w", err)
	}
	return s, nil
}

// process is one unit.
type process struct {
	command *exec.Cmd
	device  string // this side's end of the device pair
	name    string
	said    io.Reader
	logged  int64        // bytes in the group's log when the unit began
	cgroup  pando.Cgroup // set if the unit is limited
	why     string       // a known cause of its end, beyond the exit status
}

// confine makes the control group of the unit. It returns the files by which the unit enters the
// group; they become arguments.
func (p *process) confine(g *Group) (entries []string, err error) {
	name := filepath.Join("pando/fn", g.Tenant, p.name)
	if p.cgroup, err = g.cgroups.Make(name); err != nil {
		return nil, err
	}
	// A killed group left it, with stale counts.
	if p.cgroup.OOMKilled() {
		if err := p.cgroup.Remove(); err != nil {
			return nil, err
		}
		if p.cgroup, err = g.cgroups.Make(name); err != nil {
			return nil, err
		}
	}
	entry := p.cgroup.Entry()
	if entry.Folder != "" {
		entries = []string{filepath.Join(cgroup.Root, entry.Folder, "cgroup.procs")}
	}
	for _, tasks := range entry.Tasks {
		entries = append(entries, filepath.Join(cgroup.Root, tasks))
	}
	if err = p.cgroup.Limit(g.Limits); err != nil {
		p.release(g)
	}
	return entries, err
}

// release removes the control group of an ended process and notes whether the process ran out of
// memory.
func (p *process) release(g *Group) {
	if p == nil || p.cgroup == nil {
		return
	}
	if p.cgroup.OOMKilled() {
		p.why = fmt.Sprintf(": it needed more memory than its limit of %d MiB, see --unit-memory-mib", g.Limits.MemoryBytes>>20)
	}
	if err := p.cgroup.Remove(); err != nil {
		fmt.Fprintf(os.Stderr, "the control group of unit %s: %v\n", p.name, err)
	}
	g.cgroups.Prune(filepath.Join("pando/fn", g.Tenant))
	p.cgroup = nil
}

// deviceOf returns the name of a unit's device, at most 15 characters.
func deviceOf(group string, id int) string {
	h := fnv.New32a()
	h.Write([]byte(group))
	return fmt.Sprintf("pando%05x%02d", h.Sum32()&0xfffff, id)
}

func (g *Group) nameOf(id int) string {
	if g.Log && id == logUnit {
		return g.Name + ".log"
	}
	return fmt.Sprintf("%s.%d", g.Name, id)
}

// start makes a network namespace with one device and starts the unit in it. The namespace ends
// with the unit.
func (s *starter) start(g *Group, id int) (p *process, err error) {
	done := make(chan struct{})
	s.ask <- func() {
		defer close(done)
		p, err = s.inside(g, id)
	}
	<-done
	return p, err
}

func (s *starter) inside(g *Group, id int) (*process, error) {
	p := &process{device: deviceOf(g.Name, id), name: g.nameOf(id)}
	there, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace for unit %s: %w", p.name, err)
	}
	defer there.Close()
	defer netns.Set(s.here) //nolint:errcheck // the thread is of no use then, and the next unit's namespace is new anyway
	if err := s.wire(p.device, there, g.mtu); err != nil {
		return nil, fmt.Errorf("make the device of unit %s: %w", p.name, err)
	}
	directory := filepath.Join(g.RunDir, p.name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(g.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if p.logged, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	arguments := g.arguments(id, p.name)
	if g.Limits != (pando.Resources{}) {
		entries, err := p.confine(g)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			arguments = append(arguments, "--cgroup", entry)
		}
	}
	p.command = exec.Command(g.Binary, arguments...)
	p.command.Stderr = log
	p.command.ExtraFiles = append([]*os.File{g.memory.file}, g.memory.bells...)
	if g.sockets != nil {
		p.command.ExtraFiles = append(p.command.ExtraFiles, g.sockets[id])
	}
	if p.said, err = p.command.StdoutPipe(); err == nil {
		err = p.command.Start()
	}
	if err != nil {
		p.release(g)
		return nil, fmt.Errorf("start unit %s: %w", p.name, err)
	}
	return p, nil
}

// wire makes the device pair. The unit's end is in the unit's namespace and is called unit.
func (s *starter) wire(device string, there netns.NsHandle, mtu int) error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !os.IsNotExist(err) {
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
		LinkAttrs: netlink.LinkAttrs{Name: device, MTU: mtu}, PeerName: "unit", PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(there),
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

// arguments returns the arguments of `pando-unit member`.
func (g *Group) arguments(id int, name string) []string {
	args := append([]string{"member"}, g.Functions...)
	args = append(args, "--iface", "unit", "--name", name, "--tenant", g.Tenant, "--unit", fmt.Sprint(id),
		"--ports", fmt.Sprintf("%d-%d", g.Ports[0], g.Ports[1]), "--gap-ns", fmt.Sprint(int64(g.Gap)), "--memory-fd", "3",
		"--nominal-bits", fmt.Sprint(g.UnitBits), "--run-dir", g.RunDir, "--data-dir", g.DataDir)
	if g.Limits.MemoryBytes > 0 {
		args = append(args, "--unit-memory-mib", fmt.Sprint(g.Limits.MemoryBytes>>20))
	}
	if g.Limits.CPUs > 0 {
		args = append(args, "--unit-cpus", fmt.Sprint(g.Limits.CPUs))
	}
	if g.Limited {
		args = append(args, "--capacity-bits", fmt.Sprint(g.UnitBits))
	}
	if g.Chaos != "" {
		args = append(args, "--chaos", fmt.Sprintf("%s,%d", g.Chaos, 1+id))
	}
	if g.Log {
		args = append(args, "--output-log", fmt.Sprint(logUnit))
	}
	if g.Store != "" {
		args = append(args, "--state-store", g.Store)
	}
	if g.sockets != nil {
		args = append(args, "--udp-fd", fmt.Sprint(3+1+len(g.memory.bells)), "--peers", strings.Join(g.addresses, ","))
	}
	return append(args, g.Flags...)
}

// wait waits until a unit is ready. It returns the reason if the unit fails to start.
func (p *process) wait() error {
	said, err := io.ReadAll(p.said)
	if err == nil && string(said) == "ready\n" {
		return nil
	}
	_ = p.command.Wait()
	reason := strings.TrimSpace(string(said))
	if reason == "" {
		reason = fmt.Sprint("it ended before it was ready: ", p.command.ProcessState)
	}
	return fmt.Errorf("%w: unit %s: %s", pando.ErrInvalid, p.name, reason)
}

// room is the space in a unit's MTU beyond the packet: steering's header and two VLAN tags behind
// it.
const room = flowlet.HeaderBytes + 8
