package peer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// quick is a clock that runs a hundred times as fast.
type quick struct{ began time.Time }

const quickness = 100

func (q quick) Now() time.Time { return q.began.Add(time.Since(q.began) * quickness) }
func (q quick) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d / quickness)
	return t.C, func() { t.Stop() }
}

// A stopped agent accepts a connection and never answers. Each request names it while it waits, and
// then ends.
func TestAStoppedAgentIsNamedAndGivenUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(Reach{Clock: quick{time.Now()}})
	defer c.Close()
	stopped := pando.Host{Name: "host2", Endpoint: "unix://" + socket}
	for name, ask := range map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := c.Exec(ctx, stopped, "web-1", pando.SessionSpec{Command: []string{"true"}})
			return err
		},
		"states": func(ctx context.Context) error {
			return c.Objects(ctx, stopped, &bytes.Buffer{})
		},
		"stats": func(ctx context.Context) error {
			_, err := c.Usage(ctx, stopped, pando.DefaultService("web"))
			return err
		},
		"logs": func(ctx context.Context) error {
			_, err := c.Logs(ctx, stopped, pando.DefaultService("web"), nil, pando.LogQuery{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			told := make(chan string, 9)
			err := ask(pando.TellWaits(ctx, func(what string) { told <- what }))
			if !errors.Is(err, pando.ErrUnreachable) || ctx.Err() != nil ||
				!strings.Contains(err.Error(), "the agent of host2 gave no sign of life") {
				t.Errorf("the request ended with %v", err)
			}
			if what := <-told; what != "the agent of host2" {
				t.Errorf("it waited for %q", what)
			}
		})
	}
}
