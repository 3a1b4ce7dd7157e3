package ebpf

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listTranslated adds the flows that this network namespace sends on to an external endpoint. It
// has no sockets of them, and its connection tracking is the truth. Only such a namespace forwards.
func listTranslated(out map[connection]bool) error {
	on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // flows that are not known are not absent
	}
	if !bytes.HasPrefix(on, []byte("1")) {
		return nil
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return err
		}
		for _, f := range flows {
			c, established, open := translatedFlow(f)
			if open {
				out[c] = established
			}
		}
	}
	return nil
}

// States of TCP in the kernel's nf_conntrack_tcp.h.
const (
	trackedSYNSent   = 1
	trackedSYNRecv   = 2
	trackedTimeWait  = 7
	trackedCloseDone = 8
)

// translatedFlow returns a tracked flow as a connection, as the socket of an instance would be.
func translatedFlow(f *netlink.ConntrackFlow) (c connection, established, open bool) {
	end := func(ip []byte, port uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a.Unmap(), port)
	}
	c = connection{f.Forward.Protocol, end(f.Forward.SrcIP, f.Forward.SrcPort),
		end(f.Forward.DstIP, f.Forward.DstPort)}
	tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	if !ok {
		return c, true, f.Forward.Protocol == protocols["udp"]
	}
	switch tcp.State {
	case trackedTimeWait, trackedCloseDone, 0:
		return c, false, false
	}
	return c, tcp.State != trackedSYNSent && tcp.State != trackedSYNRecv, true
}
