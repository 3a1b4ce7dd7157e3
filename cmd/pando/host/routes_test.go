package host

import (
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/kernel"
)

func TestRoutesAndTheirTroubles(t *testing.T) {
	at := func(text string, up bool, why string) pando.RouterStatus {
		return pando.RouterStatus{Router: pando.Router{Address: netip.MustParseAddr(text), AS: 64500},
			Up: up, Why: why}
	}
	a, b := at("192.0.2.1", true, ""), at("2001:db8::1", false, "no machine has this address")
	for name, c := range map[string]struct {
		routes pando.Routes
		want   string
	}{
		"well": {pando.Routes{VIPs: 6, Routers: []pando.RouterStatus{a}},
			"announces 6 VIPs to 192.0.2.1 (AS 64500)"},
		"one of two is down": {pando.Routes{VIPs: 6, Routers: []pando.RouterStatus{a, b}},
			"has no BGP session with 2001:db8::1 (AS 64500): no machine has this address|" +
				"announces 6 VIPs to 192.0.2.1 (AS 64500)"},
		"silent": {pando.Routes{Why: "it leaves", Routers: []pando.RouterStatus{a}},
			"announces no VIP by BGP: it leaves"},
		"out of reach": {pando.Routes{VIPs: 2, Unable: 3, Routers: []pando.RouterStatus{a}},
			"announces 2 VIPs to 192.0.2.1 (AS 64500)|" +
				"has no way to the instances of 3 services, and announces them not"},
	} {
		if got := strings.Join(routes(c.routes), "|"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	var b2 strings.Builder
	routing(&b2, []pando.HostStatus{{}, {Losses: &pando.Losses{}},
		{Host: pando.Host{Name: "h"}, Losses: &pando.Losses{Routes: &pando.Routes{Why: "it leaves"}}}})
	if got := b2.String(); got != "h announces no VIP by BGP: it leaves\n" {
		t.Errorf("%q", got)
	}
}

// `pando doctor` names a session that is down, with its cause. It stays fit: services run.
func TestTheDoctorNamesASessionThatIsDown(t *testing.T) {
	up := pando.RouterStatus{Router: pando.Router{Address: netip.MustParseAddr("192.0.2.1"),
		AS: 64500}, Up: true}
	down := pando.RouterStatus{Router: pando.Router{Address: netip.MustParseAddr("192.0.2.2"),
		AS: 64500}, Why: "the router refuses the connection"}
	all := sessionFindings([]pando.HostStatus{
		{Host: pando.Host{Name: "quiet"}},
		{Host: pando.Host{Name: "h1"}, Losses: &pando.Losses{
			Routes: &pando.Routes{Routers: []pando.RouterStatus{up, down}}}},
	})
	if len(all) != 2 || all[0].State != kernel.OK || all[1].State != kernel.Missing ||
		all[1].Found != down.Why || all[1].Name != "BGP, h1 to 192.0.2.2 (AS 64500)" ||
		all[1].Mend == "" || !kernel.Fit(all) {
		t.Errorf("the findings are %+v", all)
	}
}

// Daemons that do not answer leave the clocks and the sessions unknown, and not well. Without daemons
// there is nothing to know.
func TestDoctorDoesNotKnowASilentCluster(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket) // it accepts connections and sends no answer
	if err != nil {
		t.Fatal(err)
	}
	getenv := func(name string) string { return map[string]string{"PANDO_API": socket}[name] }
	o := console.Open(&cli.Output{Env: cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: getenv}})
	all := ofCluster(t.Context(), o)
	if len(all) != 1 || all[0].State != kernel.Missing || !strings.Contains(all[0].Costs, "not known") ||
		all[0].Needed {
		t.Errorf("silent daemons: %+v", all)
	}
	l.Close()
	if all := ofCluster(t.Context(), o); len(all) > 0 {
		t.Errorf("no daemons: %+v", all)
	}
}
