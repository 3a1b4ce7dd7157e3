package edge

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
)

// The two VIPs of a service are in one share, so one host answers for both.
func TestBothVIPsOfAServiceAreInOneShare(t *testing.T) {
	for _, c := range []struct {
		vip4, vip6 string
		want       int
	}{
		{"10.127.0.2", "fd70:616e:646f:ffff::2", 2},
		{"10.127.1.255", "fd70:616e:646f:ffff::1ff", 255},
		{"10.127.2.0", "fd70:616e:646f:ffff::200", 0},
	} {
		four, six := VIPShare(netip.MustParseAddr(c.vip4)), VIPShare(netip.MustParseAddr(c.vip6))
		if four != c.want || six != c.want {
			t.Errorf("%s is in share %d, %s in %d, want %d", c.vip4, four, c.vip6, six, c.want)
		}
	}
}

func TestSharesAreASet(t *testing.T) {
	var a, b Shares
	for _, n := range []int{0, 63, 64, 200, 255} {
		a.Add(n)
	}
	b.Add(64)
	b.Add(65)
	list := func(s Shares) []int { return slices.Collect(s.All()) }
	for name, c := range map[string]struct{ got, want []int }{
		"and":  {list(a.And(b)), []int{64}},
		"or":   {list(a.Or(b)), []int{0, 63, 64, 65, 200, 255}},
		"less": {list(a.Less(b)), []int{0, 63, 200, 255}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if a.Len() != 5 || !a.Has(255) || a.Has(254) {
		t.Errorf("%d shares: %v", a.Len(), list(a))
	}
	text, err := json.Marshal(a)
	var back Shares
	if err2 := json.Unmarshal(text, &back); err != nil || err2 != nil || back != a {
		t.Errorf("%s is read as %v: %v, %v", text, list(back), err, err2)
	}
}
