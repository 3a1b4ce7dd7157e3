package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// monitor is the name of the emulator's control socket. It has no file: it belongs to the network
// namespace of the instance, so no other instance reaches it.
const monitor = "pando-machine"

// answersMax bounds the bytes of the emulator's answers.
const answersMax = 64 << 10

// PowerOff presses the power button (ACPI) of the machine in the network namespace of the calling
// thread. It returns once the emulator has pressed it. The machine ends later, or never if its
// system has no driver for the button.
func PowerOff(ctx context.Context) error { return powerOff(ctx, monitor) }

func powerOff(ctx context.Context, name string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", "@"+name)
	if err != nil {
		return err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	return press(c)
}

// controls returns the words that make the emulator listen at its control socket.
func controls(name string) []string {
	return []string{"-chardev", "socket,id=control,server=on,wait=off,abstract=on,path=" + name,
		"-mon", "chardev=control,mode=control"}
}

// press speaks QMP: a greeting, then an answer to each command, with events between them.
func press(c io.ReadWriter) error {
	from := json.NewDecoder(io.LimitReader(c, answersMax))
	var greeting struct{ QMP *struct{} }
	if err := from.Decode(&greeting); err != nil || greeting.QMP == nil {
		return fmt.Errorf("the emulator does not greet: %w", err)
	}
	for _, command := range []string{"qmp_capabilities", "system_powerdown"} {
		if _, err := fmt.Fprintf(c, "{\"execute\": %q}\n", command); err != nil {
			return err
		}
		for {
			var answer struct {
				Return *struct{}
				Error  *struct{ Desc string }
			}
			if err := from.Decode(&answer); err != nil {
				return fmt.Errorf("the emulator does not answer %s: %w", command, err)
			}
			if answer.Error != nil {
				return fmt.Errorf("the emulator refuses %s: %s", command, answer.Error.Desc)
			}
			if answer.Return != nil {
				break
			}
		}
	}
	return nil
}
