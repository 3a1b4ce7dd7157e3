package nat

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// A sealed namespace keeps its own loopback device, and an open one has no rule.
func TestASealClosesOneLink(t *testing.T) {
	inOwnNetwork(t, func() {
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		for range 2 { // a new agent may seal again
			if err := Seal(int(ns.Fd()), "eth0"); err != nil {
				t.Error(err)
				return
			}
		}
		got := rules(t)
		for _, want := range []string{`iifname "eth0" drop`, `oifname "eth0" drop`} {
			if strings.Count(got, want) != 1 {
				t.Errorf("%q is not there once:\n%s", want, got)
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Errorf("the namespace does not reach itself: %v", err)
			return
		}
		c.Close()
		for range 2 {
			if err := Unseal(int(ns.Fd())); err != nil {
				t.Error(err)
			}
		}
		if got := rules(t); strings.Contains(got, "eth0") {
			t.Errorf("the open namespace has\n%s", got)
		}
	})
}
