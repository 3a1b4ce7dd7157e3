package peer

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
)

// asking serves the copies of a host to a caller with a name.
func asking(t *testing.T, h *host, caller pando.HostName) (pando.Host, *Client) {
	t.Helper()
	handler := CopyHandler(http.NotFoundHandler(), h)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(WithAsker(r.Context(), caller)))
	}))
	t.Cleanup(s.Close)
	c := New(Reach{})
	t.Cleanup(func() { _ = c.Close() })
	return pando.Host{Name: "h1", Endpoint: s.URL}, c
}

func TestAStateCrossesTheWireUnderItsSendersName(t *testing.T) {
	for _, caller := range []pando.HostName{"h2", "h3"} {
		to, c := asking(t, &host{}, caller)
		got, err := c.ShipState(t.Context(), to, func(w io.Writer) error {
			_, err := io.WriteString(w, "objects")
			return err
		})
		if err != nil || got.Taken != (caller == "h2") || got.Epoch != 7 {
			t.Errorf("from %s: %+v, %v", caller, got, err)
		}
	}
	to, c := asking(t, &host{}, "")
	_, err := c.ShipState(t.Context(), to, func(io.Writer) error { return nil })
	if !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a caller that is no host: %v", err)
	}
}

// A sender that fails in the middle has not sent its state.
func TestABrokenShipmentIsNotTaken(t *testing.T) {
	to, c := asking(t, &host{}, "h2")
	got, err := c.ShipState(t.Context(), to, func(w io.Writer) error {
		_, _ = io.WriteString(w, "objects")
		return errors.New("input/output error")
	})
	if err == nil || got.Taken || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("%+v, %v", got, err)
	}
	to, c = asking(t, &host{err: pando.ErrStoreFull}, "h2")
	_, err = c.ShipState(t.Context(), to, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 4<<20)) // more than a connection holds
		return err
	})
	if err == nil {
		t.Error("a host with an error took a state")
	}
}

func TestAStateIsFetched(t *testing.T) {
	to, c := asking(t, &host{}, "h2")
	q := pando.StateWanted{Service: pando.DefaultService("web"), Want: pando.ObjectID{1}}
	for range 1000 { // a long list of commits
		q.Have = append(q.Have, pando.ObjectID{2})
	}
	body, err := c.FetchState(t.Context(), to, q)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil || string(text) != "web "+q.Want.String() {
		t.Errorf("%q, %v", text, err)
	}
	to, c = asking(t, &host{err: pando.ErrNotFound}, "h2")
	if _, err := c.FetchState(t.Context(), to, q); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a commit that is not there: %v", err)
	}
	if _, err := New(Reach{}).FetchState(t.Context(), pando.Host{Name: "h9"}, q); err == nil {
		t.Error("a host without an endpoint answered")
	}
}
