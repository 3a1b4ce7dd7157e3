package control

import (
	"context"
	"net/netip"
	"testing"

	"pando.run/pando"
)

// Of several servers, one that does not answer is named. The asked one is not asked itself.
func TestASilentServerIsNamed(t *testing.T) {
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	c := &operators{view: &view{Config: Config{Name: "h1",
		Answers: func(ctx context.Context, a netip.Addr) bool {
			if a == at(1) {
				t.Error("the server asks itself")
			}
			return a == at(2)
		}}}}
	all := map[pando.HostName]pando.HostStatus{}
	for n, name := range []pando.HostName{"h1", "h2", "h3", "h4"} {
		all[name] = pando.HostStatus{Host: pando.Host{Name: name, Address: at(byte(n + 1))},
			Server: name != "h4"}
	}
	silent := c.silentServers(t.Context(), all)
	if len(silent) != 1 || !silent["h3"] {
		t.Errorf("silent: %v, want h3", silent)
	}
}
