package wire

import (
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HostAddress returns an address of one host, ready at once.
func HostAddress(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}
	if a.Is6() {
		// IPv4 makes no such route for one address
		addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return addr
}

// SplitStat splits /proc/PID/stat after the program's name, so that field 22 of proc(5) is index
// 19.
func SplitStat(s string) []string {
	at := strings.LastIndex(s, ") ")
	if at < 0 {
		return nil
	}
	return strings.Fields(s[at+2:])
}
