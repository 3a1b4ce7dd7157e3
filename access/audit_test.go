package access

import (
	"pando.run/pando"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A caller's texts cannot make a deed larger than the audit expects, and stay readable.
func TestADeedIsCut(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 5000), strings.Repeat("ä", 5000), "a\xff\xfe"} {
		d := Deed{By: text, Object: text, Detail: text, Result: text, Verb: text, From: text,
			Source: text}.Cut()
		for _, cut := range []string{d.By, d.Object, d.Detail, d.Result, d.Verb, d.From, d.Source} {
			if len(cut) > DeedTextMax || !utf8.ValidString(cut) || cut == "" {
				t.Errorf("%d bytes, valid %v", len(cut), utf8.ValidString(cut))
			}
		}
		if d.Bytes() > 220+7*DeedTextMax {
			t.Errorf("%d bytes", d.Bytes())
		}
	}
	if d := (Deed{By: "anna"}).Cut(); d.By != "anna" {
		t.Errorf("a short text became %q", d.By)
	}
}

func TestAQueryWantsItsDeeds(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	d := Deed{At: at, Source: "token acme/ci", By: "anna", Tenant: "acme", Owner: "beta"}
	for _, c := range []struct {
		q    DeedQuery
		want bool
	}{
		{DeedQuery{}, true}, {DeedQuery{Since: at}, true},
		{DeedQuery{Since: at.Add(time.Second)}, false},
		{DeedQuery{Source: "acme/ci"}, true}, {DeedQuery{Source: "anna"}, true},
		{DeedQuery{Source: "host"}, false},
		{DeedQuery{Tenant: "acme"}, true}, {DeedQuery{Tenant: "beta"}, true},
		{DeedQuery{Tenant: "gamma"}, false},
	} {
		if got := c.q.Wants(d); got != c.want {
			t.Errorf("%+v: %v", c.q, got)
		}
	}
	for _, q := range []DeedQuery{{Max: -1}, {Wait: -1}, {Wait: DeedWaitMax + 1}} {
		if q.Check() == nil {
			t.Errorf("%+v is valid", q)
		}
	}
}

func TestADeedNamesItsObject(t *testing.T) {
	var d Deed
	d.About("service", "acme", "web")
	if d.Object != "service acme/web" || d.Owner != "acme" {
		t.Errorf("%+v", d)
	}
	d.About("service", pando.DefaultTenant, "web")
	if d.Object != "service web" || d.Owner != pando.DefaultTenant {
		t.Errorf("%+v", d)
	}
	d.About("host", "", "host2")
	if d.Object != "host host2" || d.Owner != "" {
		t.Errorf("%+v", d)
	}
}
