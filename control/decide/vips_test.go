package decide_test

import (
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

// A service whose range became too small waits with a reason, and can be removed. It gets its
// address at once when the range grows.
func TestAServiceWithoutAnAddressWaitsWithAReason(t *testing.T) {
	tb := decidetest.New(t)
	only := netip.MustParsePrefix("10.127.9.0/32")
	tb.Put(access.Account{Tenant: "default", VIPs: only},
		pando.Service{ServiceKey: pando.DefaultService("holder"), VIP4: only.Addr(), Current: 1,
			Target: 1, Latest: 1})
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 1} })
	svc := tb.W.Services[web].V
	svc.VIP4, svc.VIP6 = netip.Addr{}, netip.Addr{}
	tb.Put(svc)
	txn, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	tb.Fits(txn)
	said := ""
	for _, v := range txn.Put {
		if d, ok := v.(pando.Decision); ok {
			said += d.Reason
		}
		if i, ok := v.(pando.Instance); ok {
			t.Errorf("an instance starts without an address: %+v", i)
		}
	}
	if !strings.Contains(said, "it waits for an address: 1 of 1 addresses of 10.127.9.0/32") ||
		wake.IsZero() {
		t.Errorf("it says %q and looks again at %s", said, wake)
	}
	svc.Removing = true
	tb.Put(svc)
	tb.Settle()
	if _, there := tb.W.Services[web]; there {
		t.Error("it cannot be removed")
	}
}
