package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/sandbox/thread"
)

// Box is a network namespace behind a link of this one. It is wired like a sandbox: a default route
// to the host's end, its own address in each family, VIPs on its loopback device. It contains no
// process. Tests and benchmarks put servers and clients into it.
type Box struct {
	Link pando.Link
	ns   netns.NsHandle
}

// The next hop of every box. No device has this address; the box has a neighbour entry with its
// MAC.
var (
	nextHop4 = net.IPv4(169, 254, 1, 1)
	nextHop6 = net.ParseIP("fe80::1")
)

const upWaitMax = 3 * time.Second

// NewBox makes a box with a link of this name at the host's end. It returns when both ends are up.
func NewBox(name string, ip4, ip6 netip.Addr, vips ...netip.Addr) (_ *Box, err error) {
	b := &Box{Link: pando.Link{Host: name, IP4: ip4, IP6: ip6}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("make the box %s: %w", name, err)
			_ = b.Close()
		}
	}()
	if b.ns, err = newNamespace(); err != nil {
		return b, err
	}
	b.Link.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(b.ns))
	in, err := netlink.NewHandleAt(b.ns)
	if err != nil {
		return b, err
	}
	defer in.Close()
	veth := &netlink.Veth{
		LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(b.ns)),
	}
	veth.Name = name
	if err := netlink.LinkAdd(veth); err != nil {
		return b, err
	}
	outer, err := netlink.LinkByName(name)
	if err != nil {
		return b, err
	}
	inner, err := in.LinkByName("eth0")
	if err != nil {
		return b, err
	}
	b.Link.IfIndex, b.Link.MAC, b.Link.HostMAC = outer.Attrs().Index, inner.Attrs().HardwareAddr,
		outer.Attrs().HardwareAddr
	if err := b.wire(in, inner, outer, vips); err != nil {
		return b, err
	}
	return b, awaitUp(in, b.Link.IfIndex, inner.Attrs().Index)
}

func newNamespace() (ns netns.NsHandle, err error) {
	thread.Run(func() { ns, err = netns.New() })
	return ns, err
}

func (b *Box) wire(in *netlink.Handle, inner, outer netlink.Link, vips []netip.Addr) error {
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	own := func(a netip.Addr) *netlink.Addr {
		return &netlink.Addr{
			IPNet: netlink.NewIPNet(a.AsSlice()), Flags: map[bool]int{true: unix.IFA_F_NODAD}[a.Is6()],
		}
	}
	at := func(l netlink.Link, ip net.IP, mac net.HardwareAddr) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip, HardwareAddr: mac,
		}
	}
	steps := []func() error{
		func() error { return in.LinkSetUp(lo) },
		func() error { return in.LinkSetUp(inner) },
		func() error { return netlink.LinkSetUp(outer) },
	}
	for _, v := range vips {
		steps = append(steps, func() error { return in.AddrAdd(lo, own(v)) })
	}
	for ip, hop := range map[netip.Addr]net.IP{b.Link.IP4: nextHop4, b.Link.IP6: nextHop6} {
		if !ip.IsValid() {
			continue
		}
		everywhere := &net.IPNet{IP: make(net.IP, ip.BitLen()/8), Mask: net.CIDRMask(0, ip.BitLen())}
		steps = append(steps,
			func() error { return in.AddrAdd(inner, own(ip)) },
			func() error { return in.NeighAdd(at(inner, hop, b.Link.HostMAC)) },
			func() error {
				return in.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Dst: everywhere, Gw: hop,
					Flags: int(netlink.FLAG_ONLINK)})
			},
			func() error {
				return netlink.RouteAdd(&netlink.Route{
					LinkIndex: outer.Attrs().Index, Dst: netlink.NewIPNet(ip.AsSlice()), Scope: netlink.SCOPE_LINK,
				})
			},
			func() error { return netlink.NeighSet(at(outer, ip.AsSlice(), b.Link.MAC)) },
		)
	}
	for n, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("wire it (step %d): %w", n, err)
		}
	}
	return nil
}

// awaitUp waits until both ends are up: an earlier packet would be lost.
func awaitUp(in *netlink.Handle, outer, inner int) error {
	deadline := time.After(upWaitMax)
	for {
		a, err := netlink.LinkByIndex(outer)
		if err != nil {
			return err
		}
		b, err := in.LinkByIndex(inner)
		if err != nil {
			return err
		}
		if a.Attrs().OperState == netlink.OperUp && b.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-deadline:
			return fmt.Errorf("%w: the link did not come up within %s", pando.ErrNotReady, upWaitMax)
		default:
		}
	}
}

// Inside runs f on a thread in the box's namespace. Sockets that f makes stay in it; other
// goroutines that f starts do not.
func (b *Box) Inside(f func() error) error { return netspace.In(b.ns, f) }

// SetMTU sets the largest packet from the host to the box. The other direction keeps its size.
func (b *Box) SetMTU(bytes int) error {
	l, err := netlink.LinkByName(b.Link.Host)
	if err != nil {
		return fmt.Errorf("set the MTU of %s: %w", b.Link.Host, err)
	}
	return netlink.LinkSetMTU(l, bytes)
}

// Close removes the link. The namespace ends with its last socket.
func (b *Box) Close() error {
	var err error
	if l, lerr := netlink.LinkByName(b.Link.Host); lerr == nil {
		err = netlink.LinkDel(l)
	}
	if b.ns.IsOpen() {
		b.ns.Close()
	}
	return err
}

// Alone runs the calling program again in its own network and mount namespaces, with its own bpffs,
// and ends with its exit code. In the new namespaces it returns. A test's main calls it first, so
// that the test touches nothing of the machine. It needs root.
func Alone(mark string) error {
	if os.Getenv(mark) == "" {
		return again(mark)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount a bpffs: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func again(mark string) error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread() // Pdeathsig refers to the death of this thread
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		return fmt.Errorf("start in namespaces of its own: %w", err)
	}
	os.Exit(cmd.ProcessState.ExitCode())
	return nil
}
