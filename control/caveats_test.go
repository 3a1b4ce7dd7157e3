package control

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
)

// A spread that the hosts cannot hold is named, and one that they hold is not.
func TestASpreadThatTheHostsCannotHoldIsNamed(t *testing.T) {
	tb := decidetest.New(t)
	tb.Members("h1", "h2", "h3")
	host := func(h pando.HostName, labels string) pando.Host {
		return pando.Host{Name: h, Tunnel: true, Labels: labels}
	}
	tb.Put(host("h1", "zone=a"), host("h2", "zone=a"), host("h3", "zone=b"))
	spec := func(spread string, least int, only string) pando.Spec {
		return pando.Spec{Name: "web", Scale: pando.Scale{Min: least, Max: 9},
			Place: pando.Place{Spread: spread, Only: only}}.WithDefaults()
	}
	for name, c := range map[string]struct {
		spec pando.Spec
		want string
	}{
		"one for each":     {spec("host", 3, ""), ""},
		"one more":         {spec("host", 4, ""), "4 instances share 3 hosts"},
		"by a label":       {spec("zone", 2, ""), ""},
		"of two labels":    {spec("zone", 3, ""), "3 instances share 2"},
		"a rule":           {spec("host", 2, "host=h2"), "only one host takes its instances"},
		"a label of one":   {spec("zone", 2, "zone=a"), "only one value of the label zone"},
		"none":             {spec("", 9, ""), ""},
		"no host fits it":  {spec("host", 2, "zone=c"), ""}, // it waits, with its own reason
		"one, for a spare": {spec("host", 1, "host=h2"), "only one host"},
	} {
		if got := status.Unspread(tb.W, c.spec, max(1, c.spec.Scale.Min)); !strings.Contains(got, c.want) ||
			(got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	tb.Mark("h3", true)
	if got := status.Unspread(tb.W, spec("host", 3, ""), 3); !strings.Contains(got, "share 2 hosts") {
		t.Errorf("with a drained host: %q", got)
	}
}

// A service that no packet starts says so, at its deploy and while it has no instance.
func TestAServiceThatNoPacketStartsSaysSo(t *testing.T) {
	ports := []pando.Port{{Published: 80, Target: 80}}
	for name, c := range map[string]struct {
		change func(*pando.Spec)
		warned bool
	}{
		"no idle": {func(s *pando.Spec) { s.Ports = ports }, true},
		"idle":    {func(s *pando.Spec) { s.Ports, s.Scale.IdleSeconds = ports, 60 }, false},
		"no port": {func(*pando.Spec) {}, false},
		"a job":   {func(s *pando.Spec) { s.Kind = pando.KindJob }, false},
	} {
		tb := decidetest.New(t)
		tb.Deploy(1, func(s *pando.Spec) {
			s.Scale = pando.Scale{Zero: true, Max: 2}
			c.change(s)
		})
		tb.Settle()
		st, _ := (&status.Reader{Mirror: &mirror.Mirror{World: tb.W}}).Of(web)
		spec, _ := tb.W.SpecOf(web, 1)
		if got := status.Unwoken(spec); (got != "") != c.warned || strings.Contains(st.Reason, "idle: 60s") != c.warned {
			t.Errorf("%s: %q; its status is %s: %s", name, got, st.Phase, st.Reason)
		}
	}
}
