package sim

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// counting is an agent that answers only Counters.
type counting struct{ pando.HostAgent }

func (counting) Counters(context.Context) ([]pando.EndpointCounters, error) {
	return []pando.EndpointCounters{{Flows: 3}}, nil
}

func TestPeersReachWhoIsOnTheNetwork(t *testing.T) {
	p, h := NewPeers(), pando.Host{Name: "h1"}
	p.Set(h.Name, counting{})
	if c, err := p.Counters(t.Context(), h); err != nil || len(c) != 1 || c[0].Flows != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	p.Set(h.Name, nil)
	_, err := p.Counters(t.Context(), h)
	if !errors.Is(err, pando.ErrUnavailable) || !strings.Contains(err.Error(), "h1") {
		t.Errorf("a host that is gone: %v", err)
	}
}
