package features

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// trap sets a trap in its own network namespace, and returns the finding of the trial with that
// name.
func trap(t *testing.T, name string, set func() error) (found string, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	for _, x := range trials {
		if x.name != name {
			continue
		}
		return inside(func() (string, error) {
			if err := set(); err != nil {
				t.Errorf("set the trap: %v", err)
			}
			return x.try(Config{})
		})(Config{})
	}
	t.Fatalf("there is no trial of %s", name)
	return "", nil
}

func write(name, value string) error { return os.WriteFile(sysctls+name, []byte(value), 0) }

// filter makes a chain as a firewall does.
func filter(hook *nftables.ChainHook, policy nftables.ChainPolicy) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "wall", Family: nftables.TableFamilyIPv4})
	c.AddChain(&nftables.Chain{Name: "through", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	return c.Flush()
}

func TestTrapsOfTheNetworkAreFound(t *testing.T) {
	up := func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "pando0"}, PeerName: "pando0-end",
		})
	}
	strict := func(device string) func() error {
		return func() error {
			return errors.Join(write("ipv4/conf/all/rp_filter", "0"), up(),
				write("ipv4/conf/pando0/rp_filter", "0"), write("ipv4/conf/"+device+"/rp_filter", "1"))
		}
	}
	for _, c := range []struct {
		trial, want string // "": no error
		set         func() error
	}{
		{"forwarding", "ip_forward is off", func() error { return write("ipv4/ip_forward", "0") }},
		{"forwarding", "", func() error { return write("ipv4/ip_forward", "1") }},
		{"firewall", "", func() error { return nil }},
		{"firewall", "chain through of table wall",
			func() error { return filter(nftables.ChainHookForward, nftables.ChainPolicyDrop) }},
		{"firewall", "",
			func() error { return filter(nftables.ChainHookForward, nftables.ChainPolicyAccept) }},
		{"firewall", "",
			func() error { return filter(nftables.ChainHookInput, nftables.ChainPolicyDrop) }},
		{"reverse path filter", "conf.all.rp_filter is 1 although Pando is up", strict("all")},
		{"reverse path filter", "conf.pando0.rp_filter is 1 although Pando is up", strict("pando0")},
		// No instance answers there.
		{"reverse path filter", "", strict("lo")},
		// Pando is not up yet.
		{"reverse path filter", "", func() error { return write("ipv4/conf/all/rp_filter", "1") }},
		{"reverse path filter", "", func() error {
			return errors.Join(up(), write("ipv4/conf/all/rp_filter", "2"),
				write("ipv4/conf/pando0/rp_filter", "0"))
		}},
	} {
		found, err := trap(t, c.trial, c.set)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %q, %v; want %q", c.trial, found, err, c.want)
		}
	}
}
