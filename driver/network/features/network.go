package features

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando/driver/network/attach"
)

// pass returns the smallest packet program: it lets every packet through.
func pass() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pando_doctor", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.LoadImm(asm.R0, -1, asm.DWord), asm.Return()},
	})
}

func tryBPF(Config) (string, error) {
	p, err := pass()
	if err != nil {
		return "", err
	}
	defer p.Close()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "pando_doctor", Type: ebpf.LRUHash, KeySize: 16, ValueSize: 16, MaxEntries: 16,
	})
	if err != nil {
		return "", err
	}
	return "a program and a map were loaded", m.Close()
}

func tryBPFFS(Config) (string, error) {
	const at = "/sys/fs/bpf"
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	if s.Type == unix.BPF_FS_MAGIC {
		return "mounted at " + at, nil
	}
	types, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(types), "\tbpf\n") {
		return "", fmt.Errorf("the kernel has no such file system")
	}
	return "not mounted yet; `pando up` does it", nil
}

// wires makes a pair of devices in the trial's own namespace.
func wires() (netlink.Link, error) {
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "doctor0"}, PeerName: "doctor1"}
	if err := netlink.LinkAdd(v); err != nil {
		return nil, fmt.Errorf("add a veth pair: %w", err)
	}
	return netlink.LinkByName("doctor0")
}

func tryVeth() (string, error) {
	l, err := wires()
	if err != nil {
		return "", err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return "", fmt.Errorf("set a veth up: %w", err)
	}
	return "a pair was made", nil
}

func tryDummy() (string, error) {
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "doctor0"}})
	if err != nil {
		return "", fmt.Errorf("add a dummy device: %w", err)
	}
	return "one was made", nil
}

// tryTC attaches as steering does, by either mechanism.
func tryTC() (string, error) {
	return attachBothWays(func(at attach.Place, p *ebpf.Program) (io.Closer, error) {
		return attach.Attach(at, p)
	})
}

func tryTCX() (string, error) {
	return attachBothWays(func(at attach.Place, p *ebpf.Program) (io.Closer, error) {
		where := ebpf.AttachTCXIngress
		if at.Egress {
			where = ebpf.AttachTCXEgress
		}
		return link.AttachTCX(link.TCXOptions{Interface: at.IfIndex, Program: p, Attach: where})
	})
}

// attachBothWays attaches a program to the arriving and the leaving packets of a veth.
func attachBothWays(to func(attach.Place, *ebpf.Program) (io.Closer, error)) (string, error) {
	l, err := wires()
	if err != nil {
		return "", err
	}
	p, err := pass()
	if err != nil {
		return "", err
	}
	defer p.Close()
	for _, egress := range []bool{false, true} {
		made, err := to(attach.Place{IfIndex: l.Attrs().Index, Egress: egress}, p)
		if err != nil {
			return "", fmt.Errorf("attach to a veth: %w", err)
		}
		defer made.Close()
	}
	return "attached both ways to a veth", nil
}

// tryXDP registers packet memory with a socket, as a unit does first.
func tryXDP() (string, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	memory, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "", fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: uint64(len(memory)),
		Size: 2048}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return "", fmt.Errorf("register memory: %w", errno)
	}
	return "memory was registered with a socket", nil
}
