package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Protocol numbers (IANA).
const (
	icmp4 = 1
	icmp6 = 58
)

// answersPing returns nil if all addresses answer an ICMP echo. The namespace of an external
// endpoint sends the echoes of one family to the endpoint, and answers those of the other itself.
func answersPing(ctx context.Context, all []netip.Addr) error {
	for _, a := range all {
		if err := ping(ctx, a); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("the instance has no address")
	}
	return nil
}

// ping sends one ICMP echo and waits for its answer. It needs a raw socket: the ping sockets of the
// kernel are open to no group by default.
func ping(ctx context.Context, to netip.Addr) error {
	network, number := "ip4:icmp", icmp4
	var asks, answers icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, number = "ip6:ipv6-icmp", icmp6
		asks, answers = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	d, err := (&net.Dialer{}).DialContext(ctx, network, to.String())
	if err != nil {
		return err
	}
	c := d.(*net.IPConn)
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	mark := make([]byte, 16) // the socket also gets the answers to other probes of this address
	_, _ = rand.Read(mark)   // it never fails
	echo := &icmp.Echo{ID: int(binary.BigEndian.Uint16(mark)), Seq: 1, Data: mark}
	ask, err := (&icmp.Message{Type: asks, Body: echo}).Marshal(nil) // the kernel sums ICMPv6 up
	if err != nil {
		return err
	}
	if _, err := c.Write(ask); err != nil {
		return err
	}
	for b := make([]byte, 1<<10); ; {
		n, _, err := c.ReadFromIP(b)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(number, b[:n])
		if err != nil || m.Type != answers {
			continue
		}
		if got, ok := m.Body.(*icmp.Echo); ok && bytes.Equal(got.Data, mark) {
			return nil
		}
	}
}
