package probe

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// refusalMax is how long a probe by UDP waits for an answer or for a refusal. Silence is a success,
// so a well instance that answers nothing holds up its runner for this time.
const refusalMax = 250 * time.Millisecond

// takes sends an empty datagram, and returns nil if it is answered or not refused. The kernel of
// the receiver refuses one to a port without a program, by ICMP (port unreachable).
func takes(whole context.Context, at string) error {
	ctx, cancel := context.WithTimeout(whole, refusalMax)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if _, err := c.Write(nil); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // a longer answer is cut
	switch {
	case errors.Is(whole.Err(), context.Canceled):
		return whole.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}
