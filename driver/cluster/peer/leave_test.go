package peer

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
)

type noLeaver struct{}

func (noLeaver) Leave(context.Context, time.Duration) (int, error) { return 0, nil }

// The server sees no program of another user, so it asks the agent who has a port.
func TestTheAgentNamesTheProgramAtAPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	taken := pando.HostPort{Port: 443, Protocol: pando.TCP}
	s := &http.Server{Handler: OwnHandler(noLeaver{}, func(p pando.HostPort) (string, bool) {
		return "nginx (process 7)", p == taken
	}, http.NotFoundHandler())}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	c := New(Reach{Own: "h1", Socket: path})
	defer c.Close()
	own := pando.Host{Name: "h1", Endpoint: "unix://" + path}
	for p, want := range map[pando.HostPort]bool{
		taken: true, {Port: 443, Protocol: pando.UDP}: false, {Port: 80, Protocol: pando.TCP}: false,
	} {
		owner, is, err := c.Taken(t.Context(), own, p)
		if err != nil || is != want || owner != "nginx (process 7)" {
			t.Errorf("%s: %q, %t, %v", p, owner, is, err)
		}
	}
}
