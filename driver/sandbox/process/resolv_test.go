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
		r := resolver{tenant: pando.Tenant(c.tenant), ordinals: pando.ServiceName(c.ordinals)}
		got := string(r.conf([]byte(c.host)))
		if want := "nameserver " + pando.Gateway4.String() + "\n" + c.want; got != want {
			t.Errorf("of %q with %q: %q, want %q", c.tenant, c.host, got, want)
		}
	}
}

// The words of a spec are in place of the host's. "." stands for no further domain.
func TestTheWordsOfASpecReplaceTheHosts(t *testing.T) {
	const host = "search a.example\nnameserver 1.1.1.1\noptions rotate"
	for _, c := range []struct {
		domains, options []string
		want             string
	}{
		{[]string{"b.example", "c.example"}, nil, "search shop.pando b.example c.example\noptions rotate\n"},
		{[]string{"."}, []string{"ndots:2", "timeout:1"}, "search shop.pando\noptions ndots:2 timeout:1\n"},
	} {
		spec := pando.SandboxSpec{Spec: pando.Spec{DNSSearch: c.domains, DNSOptions: c.options},
			Instance: pando.Instance{Service: pando.ServiceKey{Tenant: "shop", Name: "web"}}}
		want := "nameserver " + pando.Gateway4.String() + "\n" + c.want
		if got := string(resolverOf(spec).conf([]byte(host))); got != want {
			t.Errorf("%v, %v: %q, want %q", c.domains, c.options, got, want)
		}
	}
}
