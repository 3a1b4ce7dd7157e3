package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/network/arp"
	"pando.run/pando/edge"
)

// The values of --announce.
const (
	announceNone = "none"
	announceARP  = "arp"
)

// checkAnnounce returns nil if this host can announce VIPs as the flags ask.
func checkAnnounce(p *place) error {
	switch p.Announce {
	case announceNone, "": // a role without the flag
		return nil
	case announceBGP:
		return p.BGP.check(*p)
	case announceARP:
	default:
		return fmt.Errorf("%w: --announce %s: want arp, bgp or none", pando.ErrInvalid, p.Announce)
	}
	if segmentOf(*p) == "" {
		return fmt.Errorf("%w: --announce arp: no interface has the address %q; name the address and "+
			"the interface of the clients' network by --address and --uplink", pando.ErrInvalid, p.Address)
	}
	return nil
}

// segmentOf returns the network on which this host answers for VIPs: the prefix of its address.
func segmentOf(p place) string {
	own, err := netip.ParseAddr(p.Address)
	if err != nil || p.Announce != announceARP {
		return ""
	}
	for _, name := range p.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			continue
		}
		all, _ := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range all {
			if ip, _ := netip.AddrFromSlice(a.IP); ip.Unmap() == own {
				ones, _ := a.Mask.Size()
				return netip.PrefixFrom(own, ones).Masked().String()
			}
		}
	}
	return ""
}

// announcer returns the answering side of --announce arp.
func announcer(p place, log *slog.Logger) edge.Announcer {
	return arp.New(p.Uplinks, clock.Clock{}, log)
}
