package peer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"pando.run/pando"
)

func (h *host) Expect(context.Context, pando.Move) error { return h.err }

func (h *host) Depart(_ context.Context, m pando.Move) (pando.Arrival, error) {
	return pando.Arrival{Bytes: int64(len(m.Instance.ID))}, h.err
}

func (h *host) Carry(
	_ context.Context, from pando.HostName, id string, program io.Reader,
) (pando.Arrival, error) {
	b, err := io.ReadAll(program)
	if err == nil && (from != "host7" || id != "m1") {
		err = pando.ErrForbidden
	}
	return pando.Arrival{Bytes: int64(len(b))}, errors.Join(err, h.err)
}

func (h *host) Landed(_ context.Context, id string) (pando.MoveStatus, error) {
	return pando.MoveStatus{Reason: id}, h.err
}

func (h *host) Hand(_ context.Context, _ pando.HostName, _ string, packets [][]byte) error {
	h.packets = packets
	return h.err
}

func (h *host) GiveUp(context.Context, string) error { return h.err }

func (h *host) Moving(_ context.Context, id string) (bool, error) { return id == "m1", h.err }

func TestAMoveBetweenHosts(t *testing.T) {
	a := &host{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Handler(a).ServeHTTP(w, r.WithContext(WithAsker(r.Context(), "host7")))
	}))
	defer server.Close()
	c := New(Reach{})
	defer c.Close()
	h, ctx := pando.Host{Name: "host2", Endpoint: server.URL}, t.Context()
	m := pando.Move{MoveMark: pando.MoveMark{ID: "m1", From: "host7"},
		Instance: pando.Instance{ID: "web-1"}}
	if err := c.Expect(ctx, h, m); err != nil {
		t.Error(err)
	}
	if got, err := c.Depart(ctx, h, m); err != nil || got.Bytes != 5 {
		t.Errorf("depart: %+v, %v", got, err)
	}
	if got, err := c.Carry(ctx, h, "m1", strings.NewReader("program")); err != nil || got.Bytes != 7 {
		t.Errorf("carry: %+v, %v", got, err)
	}
	if _, err := c.Carry(ctx, h, "m2", strings.NewReader("")); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another move: %v", err)
	}
	packets := [][]byte{{1, 2}, {3}}
	if err := c.Hand(ctx, h, "m1", packets); err != nil || !reflect.DeepEqual(a.packets, packets) {
		t.Errorf("hand: %v, %v", a.packets, err)
	}
	if got, err := c.Landed(ctx, h, "m1"); err != nil || got.Reason != "m1" {
		t.Errorf("landed: %+v, %v", got, err)
	}
	for id, want := range map[string]bool{"m1": true, "m2": false} {
		if got, err := c.Moving(ctx, h, id); err != nil || got != want {
			t.Errorf("moving %s: %t, %v", id, got, err)
		}
	}
	a.err = pando.ErrUnsupported
	if err := c.GiveUp(ctx, h, "m1"); !errors.Is(err, pando.ErrUnsupported) {
		t.Errorf("give up: %v", err)
	}
}
