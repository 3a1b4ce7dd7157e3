// Package vm makes the command that runs a virtual machine as the program of an instance. The
// sandbox around it is that of any program: its user, its limits, its network namespace.
//
// It starts nothing and needs no privilege. The emulator listens at the published ports of the
// instance and passes each connection on to the machine, which has a private network.
package vm

import (
	"fmt"
	"strconv"
	"strings"

	"pando.run/pando"
)

// Program is the emulator.
const Program = "qemu-system-x86_64"

// codeMiB is the memory for translated code. The default is a quarter of the host's memory.
const codeMiB = 64

// Command returns the words of the program for an instance of a spec of kind vm. With the grant
// device=kvm it uses KVM where the host has it, and else it emulates the processor.
func Command(s pando.Spec) []string {
	v := s.VM
	out := []string{Program, "-machine", "q35", "-cpu", "max"}
	for _, g := range s.Grants {
		if g.Device() == "kvm" {
			out = append(out, "-accel", "kvm")
		}
	}
	out = append(out, "-accel", "tcg,tb-size="+strconv.Itoa(codeMiB),
		"-smp", strconv.Itoa(v.CPUs), "-m", fmt.Sprintf("%dB", v.MemoryBytes),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", v.Kernel, "-append", strings.TrimSpace("console=ttyS0 panic=-1 "+v.Append))
	out = append(out, controls(monitor)...)
	if v.Initrd != "" {
		out = append(out, "-initrd", v.Initrd)
	}
	if v.Disk != "" {
		out = append(out, "-drive", "if=none,id=disk,format=raw,snapshot=on,file="+
			strings.ReplaceAll(v.Disk, ",", ",,"), "-device", "virtio-blk-pci,drive=disk")
	}
	net := "user,id=net"
	for _, p := range s.Ports {
		net += fmt.Sprintf(",hostfwd=%s::%d-:%d", p.Protocol, p.Target, p.Target)
	}
	return append(out, "-netdev", net, "-device", "virtio-net-pci,netdev=net,romfile=")
}
