package crew

import (
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/driver/sim"
)

func TestAnAddressHasTheTenantOfItsInstance(t *testing.T) {
	c := New("h1", records.New(records.Config{}), nil, sim.Clock{})
	r := &runner.Runner{ID: "shop-1", Service: pando.ServiceKey{Tenant: "acme", Name: "shop"}}
	a, b := netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")
	c.locate(r, pando.Link{}, pando.Link{IP4: a})
	if got, _, ok := c.InstanceAt(a); !ok || got.Tenant != "acme" {
		t.Errorf("at its address: %v, %v", got, ok)
	}
	other := &runner.Runner{ID: "till-1", Service: pando.ServiceKey{Tenant: "bank", Name: "till"}}
	c.locate(other, pando.Link{}, pando.Link{IP4: b})
	c.locate(r, pando.Link{IP4: b}, pando.Link{}) // a late word of a former owner
	if got, _, _ := c.InstanceAt(b); got.Tenant != "bank" {
		t.Errorf("the address of another has the tenant %q", got.Tenant)
	}
	c.locate(r, pando.Link{IP4: a}, pando.Link{})
	if len(c.at) != 1 {
		t.Errorf("left: %v", c.at)
	}
}
