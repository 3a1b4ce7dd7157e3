package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/wall"
)

// folders are hosts with their logs.
type folders struct {
	pando.Peers
	logs  map[pando.HostName]map[pando.InstanceID]string
	asked []pando.HostName
}

func (f *folders) Logs(
	_ context.Context, h pando.Host, i pando.InstanceID, _ int, _ bool,
) (io.ReadCloser, error) {
	f.asked = append(f.asked, h.Name)
	if text, ok := f.logs[h.Name][i]; ok {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	return nil, fmt.Errorf("log of %s: %w", i, pando.ErrNotFound)
}

func logsOf(t *testing.T, c *Control, i pando.InstanceID) string {
	t.Helper()
	log, err := c.Logs(t.Context(), web, i, 10, true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The host of an instance that is gone is not recorded, so every host is asked, its home first.
func TestTheLogOfADeadInstanceIsFoundOnItsHost(t *testing.T) {
	f := &folders{logs: map[pando.HostName]map[pando.InstanceID]string{"h3": {"web-a": "last words\n",
		"web-b": ""}}}
	c := New(Config{Peers: f, Clock: wall.Clock{}})
	c.world.Committed(pando.Txn{Put: []pando.Stored{
		pando.Host{Name: "h1"}, pando.Host{Name: "h2"}, pando.Host{Name: "h3"},
		pando.Service{ServiceKey: web, Home: "h3", Target: 1},
	}}, 1)
	if got := logsOf(t, c, "web-a"); got != "last words\n" || len(f.asked) != 1 {
		t.Errorf("got %q from %v", got, f.asked)
	}
	f.asked = nil
	_, err := c.Logs(t.Context(), web, "web-none", 10, false)
	if !errors.Is(err, pando.ErrNotFound) || len(f.asked) != 3 {
		t.Errorf("an instance that never was: %v, asked %v", err, f.asked)
	}
	if _, err := c.Logs(t.Context(), web, "../../web-a", 10,
		false); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a name that is a path: %v", err)
	}
	if got := logsOf(t, c, ""); got != "" {
		t.Errorf("a service that never had an instance printed %q", got)
	}
	for n, i := range []pando.InstanceID{"web-a", "web-b"} { // web-b is newer and has printed nothing
		c.world.Committed(pando.Txn{Put: []pando.Stored{pando.Decision{ID: fmt.Sprintf("%026d", n),
			Service: web, Instance: i, Kind: pando.DecidedFailed}}}, 2)
	}
	got := logsOf(t, c, "")
	if got != "web-a  (it is gone; no instance of web lives)\nweb-a  last words\n" {
		t.Errorf("without a living instance: %q", got)
	}
}
