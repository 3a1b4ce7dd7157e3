package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"pando.run/pando"
)

// inMachine makes the program of a spec of kind vm its emulator. It sees the files of the machine.
func inMachine(p *program, s pando.Spec, command func(pando.Spec) []string) error {
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
		p.Show = append(p.Show, shown{Path: f})
	}
	return nil
}
