package front

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"pando.run/pando/driver/network/attach"
)

// localPin begins the names of the pins of programs for the host's own clients.
const localPin = "local"

// ServeLocal lets the programs of this host reach its ports: by the own address, localhost or ::1.
// They connect to the VIP without noticing. The error names a kernel without such programs; the
// ports serve all other clients nevertheless.
func (f *Steering) ServeLocal() error {
	root, err := attach.OpenGroup()
	if err != nil {
		return err
	}
	defer root.Close()
	for _, at := range []struct {
		pin     string
		kind    ebpf.AttachType
		program *ebpf.Program
	}{
		{localPin + "4", ebpf.AttachCGroupInet4Connect, f.objects.Connects4},
		{localPin + "6", ebpf.AttachCGroupInet6Connect, f.objects.Connects6},
	} {
		if err := root.Attach(filepath.Join(f.links(), at.pin), at.kind, at.program); err != nil {
			return fmt.Errorf("let programs of this host reach its ports: %w", err)
		}
	}
	return nil
}
