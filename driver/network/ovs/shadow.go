package ovs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
)

// A shadow is the device of an instance that the switch has as a port. It is a pair of veths of its
// own. IP packets of the instance's veth are redirected to it, behind every other program there,
// such as the walls of driver/network/firewall. A netdev datapath reads a port before the programs at it, so
// the instance's veth itself would bypass them. The kernel takes nothing from a shadow.
//
//	instance ── veth ── walls ── redirect ──► end ── shadow ──► switch
//	instance ◄─ veth ◄───────── redirect ──── end ── shadow ◄── switch

// The names of a shadow and of its end begin with these. The rest is that of the instance's veth,
// without its "pd".
const (
	shadowPrefix = "po"
	endPrefix    = "pe"
)

func shadowOf(l pando.Link) string { return shadowPrefix + strings.TrimPrefix(l.Host, "pd") }

func endOf(l pando.Link) string { return endPrefix + strings.TrimPrefix(l.Host, "pd") }

// results of a program at a device (enum tcx_action_base of the kernel).
const (
	next     = -1
	dropped  = 2
	protocol = 16 // the offset in struct __sk_buff
)

// redirect returns a program that sends IP packets to a device. Others continue.
func redirect(ifindex int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, protocol, asm.Word),
		asm.JEq.Imm(asm.R2, 0x0008, "ip"), // in network order
		asm.JEq.Imm(asm.R2, 0xdd86, "ip"),
		asm.Mov.Imm(asm.R0, next),
		asm.Return(),
		asm.Mov.Imm(asm.R1, int32(ifindex)).WithSymbol("ip"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	}
}

func swallow() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, dropped), asm.Return()}
}

// cast makes the shadow of an instance and joins it to the veth. Its repetition changes nothing.
func cast(pins string, l pando.Link) (string, error) {
	name := shadowOf(l)
	shadow, end, err := pair(name, endOf(l))
	if err != nil {
		return "", fmt.Errorf("make the device %s for the switch: %w", name, err)
	}
	for _, h := range []struct {
		pin     string
		ifindex int
		program asm.Instructions
	}{
		{name + "-in", shadow, swallow()},
		{name + "-end", end, redirect(l.IfIndex)},
		{name + "-veth", l.IfIndex, redirect(end)},
	} {
		if err := attach(filepath.Join(pins, h.pin), h.ifindex, h.program); err != nil {
			return "", fmt.Errorf("join %s to %s: %w", l.Host, name, err)
		}
	}
	return name, plain(l)
}

// pair makes two joined veths that are up, or finds them. The kernel sends nothing to them of
// its own accord.
func pair(name, end string) (ifindex, other int, err error) {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: end}); err != nil {
			return 0, 0, err
		}
		if dev, err = netlink.LinkByName(name); err != nil {
			return 0, 0, err
		}
	}
	peer, err := netlink.LinkByName(end)
	if err != nil {
		return 0, 0, err
	}
	return dev.Attrs().Index, peer.Attrs().Index, errors.Join(quiet(name), quiet(end),
		netlink.LinkSetUp(dev), netlink.LinkSetUp(peer))
}

// quiet keeps the kernel from speaking on a device of its own accord.
func quiet(name string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) { // this host has no IPv6
		return nil
	}
	return err
}

// attach puts a program at a device and pins it, in place of one that another agent has put there.
func attach(pin string, ifindex int, code asm.Instructions) error {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		info, err := l.Info()
		same := err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == ifindex
		if !same {
			_ = l.Unpin() // its device was deleted
		}
		l.Close()
		if same {
			return nil
		}
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "shadow", Type: ebpf.SchedCLS, Instructions: code, License: "Dual BSD/GPL",
	})
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: p, Attach: ebpf.AttachTCXIngress,
	})
	if err != nil {
		return fmt.Errorf("%w (a kernel of at least 6.6 is needed)", err)
	}
	defer l.Close()
	return l.Pin(pin)
}

// lift removes the shadow of a link.
func lift(pins, name string) error {
	var errs []error
	for _, end := range []string{"-in", "-end", "-veth"} {
		if err := os.Remove(filepath.Join(pins, name+end)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if dev, err := netlink.LinkByName(name); err == nil {
		errs = append(errs, netlink.LinkDel(dev))
	}
	return errors.Join(errs...)
}

// plain makes an instance send whole packets with checksums. A netdev datapath passes on the bytes
// that it reads.
func plain(l pando.Link) error {
	if l.Netns == "" {
		return nil
	}
	err := netspace.At(l.Netns, func() error { return offloadsOff(l.MAC.String()) })
	if err != nil {
		return fmt.Errorf("turn the offloads of the link %s off: %w", l.Host, err)
	}
	return nil
}

// offloadsOff turns checksum offloading off at the device with an address, and with it TSO.
func offloadsOff(mac string) error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, l := range all {
		if l.Attrs().HardwareAddr.String() != mac {
			continue
		}
		value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:unix.IFNAMSIZ-1], l.Attrs().Name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
			uintptr(unsafe.Pointer(&request)))
		runtime.KeepAlive(&value)
		if errno != 0 {
			return errno
		}
	}
	return nil
}
