package pando

import (
	"slices"
	"testing"
)

func TestOrdinalsHaveNames(t *testing.T) {
	for n, want := range map[int]string{1: "db-0", 2: "db-1", OrdinalsMax: "db-63"} {
		name := OrdinalName("db", n)
		if back, ok := OrdinalOf("db", name); name != want || back != n || !ok {
			t.Errorf("ordinal %d is %s, which is ordinal %d (%v)", n, name, back, ok)
		}
	}
	for _, name := range []string{"db", "db-", "db-64", "db--1", "db-01", "db-x", "web-0"} {
		if n, ok := OrdinalOf("db", name); ok {
			t.Errorf("%s is ordinal %d", name, n)
		}
	}
	shop := ServiceKey{Tenant: "shop", Name: "db"}
	if got := OrdinalDomain(shop, 3); got != "db-2.db.shop.pando" {
		t.Errorf("the name in DNS is %s", got)
	}
	if got := OrdinalDomain(DefaultService("db"), 1); got != "db-0.db.pando" {
		t.Errorf("the name in DNS is %s", got)
	}
}

func TestPositions(t *testing.T) {
	for text, want := range map[string]Position{
		"a-b:7":           {"a-b", 7},
		"a:-1":            {"a", -1},
		noHistory + ":-1": {noHistory, -1},
	} {
		p, err := ParsePosition(text)
		if err != nil || p != want || p.String() != text || p.Empty() != (p.History == noHistory) {
			t.Errorf("%s is %+v (%v)", text, p, err)
		}
	}
	for _, text := range []string{
		"", "7", ":7", "a:", "a:x", "a b:7", "a:1:2", "a:99999999999999999999",
	} {
		if p, err := ParsePosition(text); err == nil {
			t.Errorf("%q is %+v", text, p)
		}
	}
}

func TestARollIsNotChangedInPlace(t *testing.T) {
	var none *Roll
	one := none.With(2, "h2")
	two := one.With(1, "h1")
	if none.Host(1) != "" || one.Host(1) != "" || !slices.Equal(two.Hosts, []HostName{"h1", "h2"}) {
		t.Errorf("the rolls are %+v and %+v", one, two)
	}
	if two.Host(0) != "" || two.Host(3) != "" {
		t.Error("an ordinal that there is not has a host")
	}
}
func TestTheHighestTermLeads(t *testing.T) {
	for name, c := range map[string]struct {
		names []Named
		want  int
	}{
		"none":                            {nil, 0},
		"followers":                       {[]Named{{Ordinal: 1}, {Ordinal: 2}}, 0},
		"one":                             {[]Named{{Ordinal: 1}, {Ordinal: 2, Term: 1}}, 2},
		"a former leader that is back":    {[]Named{{Ordinal: 1, Term: 3}, {Ordinal: 2, Term: 4}}, 2},
		"the lowest ordinal among equals": {[]Named{{Ordinal: 1, Term: 4}, {Ordinal: 2, Term: 4}}, 1},
	} {
		got := 0
		if n := LeaderOf(c.names); n != nil {
			got = n.Ordinal
		}
		if got != c.want {
			t.Errorf("%s: %d leads, want %d", name, got, c.want)
		}
	}
}
