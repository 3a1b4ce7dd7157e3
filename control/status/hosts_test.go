package status

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/wall"
	"pando.run/pando/world"
)

// Of several servers, one that does not answer is named. The asked one is not asked itself.
func TestASilentServerIsNamed(t *testing.T) {
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	c := &HostReader{Mirror: &mirror.Mirror{Name: "h1"}, Answers: func(ctx context.Context, a netip.Addr) bool {
		if a == at(1) {
			t.Error("the server asks itself")
		}
		return a == at(2)
	}}
	all := map[pando.HostName]pando.HostStatus{}
	for n, name := range []pando.HostName{"h1", "h2", "h3", "h4"} {
		all[name] = pando.HostStatus{Host: pando.Host{Name: name, Address: at(byte(n + 1))},
			Server: name != "h4"}
	}
	silent := c.silentServers(t.Context(), all)
	if len(silent) != 1 || !silent["h3"] {
		t.Errorf("silent: %v, want h3", silent)
	}
}

// askedFor answers the question for losses with an error.
type askedFor struct {
	pando.Peers
	err error
}

func (a askedFor) Losses(context.Context, pando.Host) (pando.Losses, error) {
	return pando.Losses{}, a.err
}

// A host that answers with an error is not called silent: the error is passed on.
func TestAHostThatAnswersWithAnErrorIsNotSilent(t *testing.T) {
	w := world.New()
	w.Hosts["h1"] = world.Versioned[pando.Host]{V: pando.Host{Name: "h1"}}
	for want, err := range map[string]error{
		"":                   fmt.Errorf("ask h1: %w", pando.ErrUnreachable),
		"read the map drops": errors.New("read the map drops"),
	} {
		c := &HostReader{Mirror: &mirror.Mirror{Clock: wall.Clock{}, World: w}, Peers: askedFor{err: err}}
		if got := c.losses(t.Context())["h1"]; got.unread != want || got.of != nil {
			t.Errorf("%v: %+v, want %q", err, got, want)
		}
	}
}
