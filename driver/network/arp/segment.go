// Package arp answers ARP requests and neighbour solicitations for VIPs on the networks of a
// host's uplinks, and announces them there.
//
// It answers from this process, not by proxy entries of the kernel. The kernel would also answer
// while the agent is paused, beside the host that took over. It never chooses the VIPs.
package arp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// reopenWait is the time between two attempts to open a device that is away.
const reopenWait = time.Second

// Responder answers on some devices. Its methods may be called from any goroutine.
type Responder struct {
	devices []string
	clock   pando.Clock
	log     *slog.Logger
}

var _ edge.Announcer = (*Responder)(nil)

// New returns a responder. A device without Ethernet addresses is left out.
func New(devices []string, c pando.Clock, log *slog.Logger) *Responder {
	return &Responder{devices: devices, clock: c, log: log}
}

// protocols are the Ethernet types of the two requests.
var protocols = []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6}

// Serve implements edge.Announcer.
func (r *Responder) Serve(ctx context.Context, answers func(netip.Addr) bool) error {
	var wg sync.WaitGroup
	for _, device := range r.devices {
		for _, protocol := range protocols {
			wg.Go(func() { r.tend(ctx, device, protocol, answers) })
		}
	}
	wg.Wait()
	return ctx.Err()
}

// tend answers requests of one protocol on one device. It opens the device again after an error.
func (r *Responder) tend(
	ctx context.Context, device string, protocol uint16, answers func(netip.Addr) bool,
) {
	said := ""
	for ctx.Err() == nil {
		err := r.listen(ctx, device, protocol, answers)
		if errors.Is(err, errNotEthernet) {
			return
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			r.log.Warn("requests for VIPs are not answered on a device; it is tried again",
				"device", device, "error", err)
		}
		_ = pando.Sleep(ctx, r.clock, reopenWait)
	}
}

func (r *Responder) listen(
	ctx context.Context, device string, protocol uint16, answers func(netip.Addr) bool,
) error {
	s, err := open(device, protocol)
	if err != nil {
		return err
	}
	return s.answer(ctx, answers)
}

// answer answers requests until an error or the end of ctx, and closes the port.
func (s *port) answer(ctx context.Context, answers func(netip.Addr) bool) error {
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	frame := make([]byte, frameMax)
	for {
		n, err := s.Read(frame)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		q, ok := read(frame[:n])
		if !ok || !answers(q.vip) {
			continue
		}
		if _, err := s.Write(q.reply(s.own)); err != nil {
			return fmt.Errorf("answer a request: %w", err)
		}
	}
}

// Announce implements edge.Announcer.
func (r *Responder) Announce(vips []netip.Addr) error {
	var errs []error
	for _, device := range r.devices {
		s, err := open(device, 0)
		if errors.Is(err, errNotEthernet) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, vip := range vips {
			if _, err := s.Write(announcement(vip, s.own)); err != nil {
				errs = append(errs, fmt.Errorf("announce %s on %s: %w", vip, device, err))
				break
			}
		}
		s.Close()
	}
	return errors.Join(errs...)
}

// frameMax is larger than any request.
const frameMax = 256

var errNotEthernet = errors.New("the device has no Ethernet address")

// port is a raw socket on one device.
type port struct {
	*os.File
	own net.HardwareAddr
}

// open opens a raw socket for frames of a protocol; 0: it only sends.
func open(device string, protocol uint16) (*port, error) {
	l, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("find the device %s: %w", device, err)
	}
	if len(l.HardwareAddr) != macBytes {
		return nil, errNotEthernet
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "packets of "+device)
	if err := prepare(fd, l.Index, protocol); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", device, err), f.Close())
	}
	return &port{f, l.HardwareAddr}, nil
}

// prepare sets the filter before the socket is bound, so that no other frame arrives.
func prepare(fd, ifindex int, protocol uint16) error {
	if protocol != 0 {
		filter, err := filterOf(protocol)
		if err != nil {
			return err
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&program); err != nil {
			return fmt.Errorf("attach the filter: %w", err)
		}
	}
	if protocol == unix.ETH_P_IPV6 { // solicitations go to a multicast address of the target
		all := unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_ALLMULTI}
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&all); err != nil {
			return fmt.Errorf("receive multicast: %w", err)
		}
	}
	return unix.Bind(fd, &unix.SockaddrLinklayer{
		Protocol: protocol<<8 | protocol>>8, Ifindex: ifindex,
	})
}
