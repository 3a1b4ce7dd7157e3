package requests

import (
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// A port of the hosts belongs to one service, also during a rollout, and never to a program.
func TestAPortOfTheHostsHasOneOwner(t *testing.T) {
	tb := decidetest.New(t)
	at := func(name pando.ServiceName, host uint16, protocol pando.Protocol) pando.Spec {
		return pando.Spec{Name: name, Command: []string{"x"}, Ports: []pando.Port{
			{Published: 80, Target: 80, Protocol: protocol, Host: host}}}.WithDefaults()
	}
	tb.Put(pando.Service{ServiceKey: decidetest.Database, Current: 1, Target: 2, Latest: 2},
		pando.Revision{Service: decidetest.Database, Number: 1, Spec: at("db", 443, pando.TCP)},
		pando.Revision{Service: decidetest.Database, Number: 2, Spec: at("db", 8443, pando.TCP)})
	asked := map[pando.HostPort]bool{}
	c := New(Config{Taken: func(p pando.HostPort) (string, bool) {
		asked[p] = true
		return "nginx (process 812)", p.Port == 22 || p.Port == 443
	}})
	for _, one := range []struct {
		spec pando.Spec
		want string // "": free
	}{
		{at("web", 0, pando.TCP), ""}, {at("web", 80, pando.TCP), ""},
		{at("web", 443, pando.TCP), "port 443/tcp of the hosts leads to service db, and web wants it"},
		{at("web", 8443, pando.TCP), "service db"}, {at("web", 8443, pando.UDP), ""},
		{at("web", 22, pando.TCP), "port 22/tcp of this host belongs to nginx (process 812)"},
		{at("db", 443, pando.TCP), ""}, // its own, which its agent serves
	} {
		err := c.desk.portTaken(tb.W, one.spec)
		switch {
		case one.want == "" && err != nil:
			t.Errorf("%s at %v: %v", one.spec.Name, one.spec.Ports, err)
		case one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want) ||
			!errors.Is(err, pando.ErrConflict)):
			t.Errorf("%s at %v: %v, want %q", one.spec.Name, one.spec.Ports, err, one.want)
		}
	}
	if asked[pando.HostPort{Port: 443, Protocol: pando.TCP}] {
		t.Error("the programs of the host are asked about a port of the service itself")
	}
}

// An older agent would leave the port out.
func TestEveryHostServesAtItsOwnAddress(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "old"})
	s := pando.Spec{Name: "web", Ports: []pando.Port{{Published: 80, Target: 80, Host: 80}}}
	if why := unable(tb.W, s); !strings.Contains(why, "publish.host: host ") {
		t.Errorf("an older host: %q", why)
	}
	s.Ports[0].Host = 0
	if why := unable(tb.W, s); why != "" {
		t.Errorf("without a port of the host: %q", why)
	}
}

func TestAConnectionIsRecordedByItsPort(t *testing.T) {
	s := pando.SessionSpec{Port: 5432}
	if about(s) != "a connection to port 5432" || kindOf(s) != pando.DecidedForward {
		t.Errorf("%q of kind %s", about(s), kindOf(s))
	}
	s = pando.SessionSpec{Command: []string{"ls", "a b"}}
	if about(s) != `ls "a b"` || kindOf(s) != pando.DecidedExec {
		t.Errorf("%q of kind %s", about(s), kindOf(s))
	}
}

// A name in DNS leads to one host, which has to be the one with the instances.
func TestADeployWarnsThatOneHostAnswers(t *testing.T) {
	tb := decidetest.New(t)
	s := pando.Spec{Name: "web", Ports: []pando.Port{{Published: 80, Target: 80, Host: 80}}}
	tb.Put(pando.Host{Name: "second"}, pando.Host{Name: "third"})
	if why := oneHost(tb.W, s); !strings.Contains(why, "place: {spread: host}") {
		t.Errorf("several hosts: %q", why)
	}
	for _, place := range []pando.Place{{Spread: pando.SpreadHost}, {Only: "host=second"}} {
		s.Place = place
		if why := oneHost(tb.W, s); why != "" {
			t.Errorf("%+v: %q", place, why)
		}
	}
	s.Place, s.Ports[0].Host = pando.Place{}, 0
	if why := oneHost(tb.W, s); why != "" {
		t.Errorf("without a port of the hosts: %q", why)
	}
}
