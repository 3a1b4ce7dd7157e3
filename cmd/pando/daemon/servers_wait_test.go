package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// `pando servers rm` returns once the agent of that host is back, and names a host that is not. A
// `pando down` there fell into the restart of the agent before.
func TestTheEndOfAServerWaitsForTheAgentOfItsHost(t *testing.T) {
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	host := func(name pando.HostName, joined time.Time, state pando.HostState) pando.HostStatus {
		return pando.HostStatus{Host: pando.Host{Name: name, Joined: joined}, State: state, Server: true}
	}
	for name, c := range map[string]struct {
		answers []pando.HostStatus // one after another, the last one again and again
		asked   int
		err     error
	}{
		"it comes back": {[]pando.HostStatus{
			host("h2", first, pando.HostHere), host("h2", first, pando.HostAway),
			host("h2", first.Add(-time.Minute), pando.HostHere), // a clock that went back
		}, 3, nil},
		"it stays away":  {[]pando.HostStatus{host("h2", first, pando.HostAway)}, 0, nil},
		"it never joins": {[]pando.HostStatus{host("h2", first, pando.HostHere)}, 2, pando.ErrNotReady},
	} {
		asked := 0
		var said strings.Builder
		hosts := func(context.Context) ([]pando.HostStatus, error) {
			asked++
			return c.answers[min(asked, len(c.answers))-1:][:1], nil
		}
		before := joinedAt(t.Context(), hosts, "h2")
		asked = 0
		limit := time.Minute
		if c.err != nil {
			limit = time.Millisecond
		}
		m := machine{&cli.Output{Env: cli.Env{Stderr: &said}}}
		err := m.awaitAgent(t.Context(), hosts, "h2", before, limit)
		if !errors.Is(err, c.err) || asked > 0 != strings.Contains(said.String(), "starts anew") ||
			c.err == nil && asked != c.asked {
			t.Errorf("%s: asked %d times: %v: %s", name, asked, err, said.String())
		}
	}
}
