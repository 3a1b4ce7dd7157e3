package nat

import (
	"os"
	"strings"
	"testing"

	"pando.run/pando"
)

// The rules are those of the newest endpoint alone, in the family of its address.
func TestANamespaceSendsFlowsToItsEndpoint(t *testing.T) {
	inOwnNetwork(t, func() {
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		ports := []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP},
			{Published: 53, Target: 53, Protocol: pando.UDP}}
		for _, s := range []string{"192.0.2.1:9", "192.0.2.7"} {
			e, err := pando.ParseExternal(s)
			if err == nil {
				err = Forward(int(ns.Fd()), e, ports)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
		six, _ := pando.ParseExternal("[2001:db8::1]:99")
		if err := Forward(int(ns.Fd()), six, ports[:1]); err != nil {
			t.Error(err)
		}
		got := rules(t)
		for _, want := range []string{"tcp dport 8080 dnat to 192.0.2.7:8080",
			"udp dport 53 dnat to 192.0.2.7:53", "tcp dport 8080 dnat to [2001:db8::1]:99",
			"icmp type echo-request dnat to 192.0.2.7",
			"icmpv6 type echo-request dnat to 2001:db8::1", "ct status dnat masquerade",
			"ct status ! dnat drop"} {
			if !strings.Contains(got, want) {
				t.Errorf("there is no %q in:\n%s", want, got)
			}
		}
		if strings.Contains(got, "192.0.2.1:9") {
			t.Errorf("the former endpoint stays:\n%s", got)
		}
	})
}
