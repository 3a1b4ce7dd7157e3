package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

const (
	mendWait   = time.Second // between a failure to make a device again and the next attempt
	linkBuffer = 1 << 20     // bytes of events about links; after a loss, Mend looks at the devices
)

// Mend makes pando0 and the tunnel again after somebody deleted them or set them down, until ctx
// ends. The kernel reports changes of links. Endpoints of other hosts then use the new tunnel.
func Mend(ctx context.Context, d *Driver, clock pando.Clock, log *slog.Logger) error {
	m := mender{d, clock, log}
	for ctx.Err() == nil {
		if err := m.watch(ctx); err != nil {
			log.Error("watch this host's links: it is tried again", "error", err)
			_ = pando.Sleep(ctx, clock, mendWait)
		}
	}
	return ctx.Err()
}

// mender mends the devices of a driver.
type mender struct {
	*Driver
	clock pando.Clock
	log   *slog.Logger
}

// watch mends the devices until the subscription to changes of links breaks.
func (m mender) watch(ctx context.Context) error {
	changes, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	broken := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(changes, done, netlink.LinkSubscribeOptions{
		ReceiveBufferSize: linkBuffer,
		ErrorCallback: func(err error) {
			select {
			case broken <- err:
			default:
			}
		},
	})
	if err != nil {
		close(done)
		return err
	}
	defer func() { // the subscription blocks until its last change is taken
		close(done)
		for range changes {
		}
	}()
	look := true // a device may have gone before the subscription
	for {
		var again <-chan time.Time
		stop := func() {}
		if look {
			if look = m.try(); look {
				again, stop = m.clock.After(mendWait)
			}
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-again:
		case u, ok := <-changes:
			if !ok {
				stop()
				return errors.Join(errors.New("the kernel reports no more changes"), drain(broken))
			}
			name := u.Attrs().Name
			look = look || name == Device || name == TunnelDevice
		}
		stop()
	}
}

func drain(broken <-chan error) error {
	select {
	case err := <-broken:
		return err
	default:
		return nil
	}
}

// try mends the devices and reports whether it must try again.
func (m mender) try() (again bool) {
	made, err := m.mend()
	for _, name := range made {
		m.log.Warn("a device of the steering was gone or down, and is there again", "device", name)
	}
	if err != nil {
		m.log.Error("make a device of the steering again: it is tried again", "error", err)
	}
	return err != nil
}

// mend makes the devices again that are gone or down, and returns their names.
func (m mender) mend() (made []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	if at, err := isUp(Device); err != nil || at == 0 {
		if err == nil {
			err = m.attachHost()
		}
		if err == nil {
			made = append(made, Device)
		}
		errs = append(errs, err)
	}
	if m.tunnel.wanted {
		at, err := isUp(TunnelDevice)
		if err == nil && (at == 0 || at != m.tunnel.ifindex) {
			m.tunnel.ifindex = 0
			if err = m.tunnel.make(m.index); err == nil {
				made = append(made, TunnelDevice)
			}
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return made, fmt.Errorf("mend the devices: %w", err)
	}
	return made, nil
}

// isUp returns the number of a device, or 0 if it is gone or down.
func isUp(name string) (ifindex int, err error) {
	dev, err := netlink.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return 0, nil
	}
	if err != nil || dev.Attrs().Flags&net.FlagUp == 0 {
		return 0, err
	}
	return dev.Attrs().Index, nil
}
