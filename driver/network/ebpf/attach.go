package ebpf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"pando.run/pando/driver/network/attach"
)

// Names of pinned links. The pin of an instance's link has the link's own name.
const (
	hostPin   = "host"
	uplinkPin = "uplink-"
	tunnelPin = "tunnel"
)

// hooks has the places of the programs. Each attached program has a pinned link.
type hooks struct {
	dir     string // of the pinned links
	objects *steerObjects
	clsact  bool // by filters, as on kernels before 6.6
}

// attachAgain attaches this build's program to every instance that a former agent connected. It
// detaches the program from devices that are no longer uplinks.
func (h hooks) attachAgain(uplinks []string) error {
	pins, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("look for attached programs: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(h.dir, pin.Name())
		uplink, ok := strings.CutPrefix(pin.Name(), uplinkPin)
		switch {
		case ok && !slices.Contains(uplinks, uplink):
			err = attach.Detach(path)
		case ok, pin.Name() == hostPin:
			continue
		case pin.Name() == tunnelPin:
			err = attach.Replace(path, h.objects.FromTunnel)
		default:
			err = attach.Replace(path, h.objects.FromInstance)
		}
		if err != nil {
			return fmt.Errorf("replace the program at %s: %w", pin.Name(), err)
		}
	}
	return nil
}

// attach puts a program at a hook, in place of a former agent's program.
func (h hooks) attach(name string, at attach.Place, p *ebpf.Program) error {
	at.Pin, at.Clsact = filepath.Join(h.dir, name), h.clsact
	made, err := attach.Attach(at, p)
	if err != nil {
		return fmt.Errorf("attach steering at %s: %w", name, err)
	}
	return made.Close()
}

// detach removes the program from a hook, if it has one.
func (h hooks) detach(name string) error { return attach.Detach(filepath.Join(h.dir, name)) }

// program returns the program of a hook.
func (h hooks) program(at Hook) (*ebpf.Program, error) {
	switch at {
	case FromOutside:
		return h.objects.FromOutside, nil
	case FromHost:
		return h.objects.FromHost, nil
	case FromInstance:
		return h.objects.FromInstance, nil
	case FromTunnel:
		return h.objects.FromTunnel, nil
	case Nothing:
		return h.objects.Nothing, nil
	}
	return nil, fmt.Errorf("there is no hook %q", at)
}
