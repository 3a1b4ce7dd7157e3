package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// On a network of large packets, a client sends to a service whose instance runs on another host than
// the one where its packets come in. A packet that the instance's link does not take is answered by
// ICMP and counted, at that host. The client's kernel then splits it, and the pieces arrive through
// the tunnel, by both families.
func TestLargePacketsOverTwoHosts(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, MTU: 9000})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	in := p.Lab.Hosts[0]
	web := p.Deploy(labtest.Echo("web", `place: {only: "host=`+p.Hosts[1]+`"}`))
	p.Must(labtest.Client, "ip", "route", "replace", "10.127.0.0/16", "via", in.IPv4)
	p.Must(labtest.Client, "ip", "-6", "route", "replace", pando.VIPs6.String(), "via", in.IPv6)
	web.AwaitPage(labtest.Client)
	svc := web.Status()
	dropped := func() (n uint64) {
		all, err := p.API(p.Host()).Hosts(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		for _, h := range all {
			if h.Name == pando.HostName(in.Name) && h.Losses != nil {
				n = h.Losses.Dropped[pando.DroppedTooLarge]
			}
		}
		return n
	}
	for _, vip := range []string{svc.VIP, svc.VIP6.String()} {
		for _, size := range []int{1400, 1540, 8000, 20000} {
			p.Must(labtest.Client, "ip", "route", "flush", "cache")
			p.Must(labtest.Client, "ip", "-6", "route", "flush", "cache")
			before, text := dropped(), strings.Repeat("d", size)
			out := p.Run(labtest.Client, p.WithEcho(), "udp", net.JoinHostPort(vip, "7"), text)
			if out.Code != 0 || !strings.Contains(out.Text, text[:1000]) {
				p.Errorf("%d bytes to %s: code %d: %.200s", size, vip, out.Code, out.Text)
			}
			if size > 1500 {
				p.Await(fmt.Sprintf("a counted drop of %d bytes to %s", size, vip), func() (string, bool) {
					now := dropped()
					return fmt.Sprint(now - before), now > before
				})
			}
		}
	}
}
