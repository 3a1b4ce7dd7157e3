package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/sandbox/process/wire"
)

// inMachine makes the program of a spec of kind vm its emulator. It sees the files of the machine.
func inMachine(p *wire.Program, s pando.Spec, command func(pando.Spec) []string) error {
	if !s.IsVM() {
		return nil
	}
	if command == nil {
		return fmt.Errorf("%w: this host runs no virtual machines", pando.ErrUnsupported)
	}
	p.Argv, p.Dir = command(s), "/"
	for _, f := range s.VM.Files() {
		if _, err := os.Stat(f); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: vm: %s is missing on this host: copy it to each host, or choose hosts "+
				"that have it with `place: {only: …}`", pando.ErrNotFound, f)
		}
		p.Show = append(p.Show, wire.HostPath{Path: f})
	}
	return nil
}

// buttonWait is how long an emulator may take to press the power button of its machine.
const buttonWait = 2 * time.Second

// pressPowerButton presses the power button of a virtual machine, and reports whether its system may shut
// down now.
func (b *sandbox) pressPowerButton(ctx context.Context) bool {
	if !b.slot.Spec.IsVM() || b.slot.Spec.StopSignal != pando.PowerButton || b.d.PowerOff == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), buttonWait)
	defer cancel()
	err := netspace.At(b.slot.netns(), func() error { return b.d.PowerOff(ctx) })
	if err != nil {
		b.d.Log.Warn("a machine is switched off without a shutdown: its power button does not work",
			"instance", b.slot.Instance, "error", err)
	}
	return err == nil
}
