package process

import (
	"testing"

	"pando.run/pando"
)

func TestTheTenantComesFirstInTheSearch(t *testing.T) {
	for _, c := range []struct{ tenant, ordinals, host, want string }{
		{"shop", "", "", "search shop.pando\n"},
		{"", "", "nameserver 1.1.1.1\n# a comment\nsortlist 1.1.1.1\n", ""},
		{"", "", "options rotate\nnameserver 1.1.1.1\noptions timeout:1", "options rotate timeout:1\n"},
		{"", "", "search corp.example\n", "search corp.example\n"},
		{"shop", "", "search a.example b.example\nnameserver 1.1.1.1\noptions ndots:2",
			"search shop.pando a.example b.example\noptions ndots:2\n"},
		{"shop", "", "search old.example\ndomain new.example\n",
			"search shop.pando new.example\n"},
		{"shop", "", "search a b c d e f g\n", "search shop.pando a b c d e\n"},
		{"shop", "db", "search a\n", "search db.shop.pando shop.pando a\n"},
	} {
		got := string(resolv(pando.Tenant(c.tenant), pando.ServiceName(c.ordinals), []byte(c.host)))
		if want := "nameserver " + pando.Gateway4.String() + "\n" + c.want; got != want {
			t.Errorf("of %q with %q: %q, want %q", c.tenant, c.host, got, want)
		}
	}
}
