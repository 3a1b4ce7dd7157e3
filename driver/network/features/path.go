package features

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// pathWait bounds the wait for a router that answers "too big", or for the host that answers "no
// such port".
const pathWait = 300 * time.Millisecond

// Fits returns nil if packets of so many bytes reach a host undivided, as far as this host can see.
// It sends one to a UDP port. The error has the size that fits. A network that drops large packets
// without an answer is not found.
func Fits(ctx context.Context, to netip.AddrPort, bytes int) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to.String())
	if err != nil {
		return fmt.Errorf("%w: find the way to %s: %w", pando.ErrUnreachable, to, err)
	}
	defer c.Close()
	udp := c.(*net.UDPConn)
	header := 28 // IP and UDP
	level, discover, whole, size := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO,
		unix.IP_MTU
	if to.Addr().Unmap().Is6() {
		header = 48
		level, discover, whole, size = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
			unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU
	}
	if err := control(udp, func(fd int) error {
		return unix.SetsockoptInt(fd, level, discover, whole)
	}); err != nil {
		return fmt.Errorf("measure the way to %s: %w", to, err)
	}
	packet := make([]byte, bytes-header)
	if _, err = c.Write(packet); err == nil {
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		timer := time.AfterFunc(pathWait, func() { c.Close() })
		_, err = c.Read(packet[:1]) // EMSGSIZE: from a router
		timer.Stop()
	}
	if !errors.Is(err, unix.EMSGSIZE) {
		return nil // it arrived, or nothing answered
	}
	most := 0
	err = control(udp, func(fd int) (err error) {
		most, err = unix.GetsockoptInt(fd, level, size)
		return err
	})
	if err != nil {
		return fmt.Errorf("measure the way to %s: %w", to, err)
	}
	return fmt.Errorf("%w: the network to %s takes packets of %d bytes, and the tunnel between hosts "+
		"needs %d; raise the MTU of the links on the way", pando.ErrInvalid, to.Addr(), most, bytes)
}

// control calls a function with the descriptor of a socket.
func control(c *net.UDPConn, call func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = call(int(fd)) })
	return errors.Join(err, failed)
}
