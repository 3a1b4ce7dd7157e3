package pando

import (
	"fmt"
	"strings"
)

// KindVM is the kind of a service of which each instance is a virtual machine. Its disk is the
// same at every start.
const KindVM ServiceKind = "vm"

// These constants bound a virtual machine.
const (
	VMMemoryBytes    = 256 << 20 // VM.MemoryBytes
	VMMemoryBytesMin = 16 << 20
	VMMemoryBytesMax = 1 << 40
	VMCPUsMax        = 64
	// VMOverheadBytes is the memory that the emulator takes beside that of the machine.
	VMOverheadBytes = 256 << 20
	vmAppendMax     = 1024
)

// VM describes the machine of KindVM. Paths are absolute after loading, and every host has them.
type VM struct {
	Kernel      string `json:"kernel,omitempty"`
	Initrd      string `json:"initrd,omitempty"`
	Disk        string `json:"disk,omitempty"`         // a raw image; writes end with the instance
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // VMMemoryBytes
	CPUs        int    `json:"cpus,omitempty"`         // 1
	Append      string `json:"append,omitempty"`       // words of the kernel's command line
}

// IsVM reports whether each instance of the service is a virtual machine.
func (s Spec) IsVM() bool { return s.Kind == KindVM }

// Files returns the files of the host that the machine reads.
func (v VM) Files() (out []string) {
	for _, f := range []string{v.Kernel, v.Initrd, v.Disk} {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}

// Check returns nil if there can be such a machine, else the reason.
func (v VM) Check() error {
	wrong := func(format string, about ...any) error {
		return fmt.Errorf("%w: vm."+format, append([]any{ErrInvalid}, about...)...)
	}
	switch {
	case v.Kernel == "":
		return wrong("kernel: is missing: name the file of a Linux kernel or a unikernel")
	case v.MemoryBytes < VMMemoryBytesMin || v.MemoryBytes > VMMemoryBytesMax:
		return wrong("memory: %d bytes: want 16M to 1024G", v.MemoryBytes)
	case v.CPUs < 1 || v.CPUs > VMCPUsMax:
		return wrong("cpus: %d: want 1 to %d", v.CPUs, VMCPUsMax)
	case len(v.Append) > vmAppendMax || strings.ContainsAny(v.Append, "\x00\n"):
		return wrong("append: want one line of at most %d bytes", vmAppendMax)
	}
	return nil
}
