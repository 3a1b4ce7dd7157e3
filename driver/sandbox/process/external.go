package process

import (
	"fmt"
	"os"

	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
)

// forward makes the sandbox send its flows to an external endpoint. The kernel translates their
// addresses in the sandbox's namespace, so the answers come back through it, and no program is on
// their way.
func (s *slot) forward(
	to func(ns int, e pando.External, ports []pando.Port) error, e pando.External, ports []pando.Port,
) error {
	if to == nil {
		return fmt.Errorf("%w: this host serves no external endpoints", pando.ErrUnsupported)
	}
	ns, err := netns.GetFromPath(s.netns())
	if err != nil {
		return err
	}
	defer ns.Close()
	err = netspace.In(ns, func() error {
		for _, option := range []struct{ name, value string }{
			{"ipv4/ip_forward", "1"}, {"ipv6/conf/all/forwarding", "1"},
			// Flows leave by the link on which they come.
			{"ipv4/conf/all/send_redirects", "0"}, {"ipv4/conf/eth0/send_redirects", "0"},
		} {
			if err := os.WriteFile("/proc/sys/net/"+option.name, []byte(option.value), 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = to(int(ns), e, ports)
	}
	if err != nil {
		return fmt.Errorf("send flows to the endpoint %s: %w", e, err)
	}
	return nil
}
