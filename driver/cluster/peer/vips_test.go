package peer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// leaver leaves all VIPs but one share to any taker.
type leaver struct {
	asked edge.VIPTake
	err   error
}

func (l *leaver) GrantVIPs(_ context.Context, t edge.VIPTake) (g edge.VIPGrant, err error) {
	l.asked = t
	g.Refused.Add(7)
	g.Flows = []edge.InstanceFlows{{
		Service: pando.DefaultService("web"), Instance: "web-1", Flows: []edge.OpenFlow{
			{Client: netip.MustParseAddrPort("192.0.2.9:40000"), Protocol: pando.TCP, Proven: true,
				VIP: netip.MustParseAddrPort("10.127.0.2:80")},
			{Client: netip.MustParseAddrPort("[2001:db8::9]:40000"), Protocol: pando.UDP,
				VIP: netip.MustParseAddrPort("[fd70:616e:646f:ffff::2]:53")},
		}}}
	return g, l.err
}

// taking serves a holder of VIPs to a caller with a name.
func taking(t *testing.T, l *leaver, caller pando.HostName) (pando.Host, *Client) {
	t.Helper()
	handler := VIPHandler(http.NotFoundHandler(), l)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(WithAsker(r.Context(), caller)))
	}))
	t.Cleanup(s.Close)
	c := New(Reach{})
	t.Cleanup(func() { _ = c.Close() })
	return pando.Host{Name: "h1", Endpoint: s.URL}, c
}

func TestATakeOfVIPsCrossesTheWireUnderItsSendersName(t *testing.T) {
	l := &leaver{}
	to, c := taking(t, l, "h2")
	asked := edge.VIPTake{Host: "h9", Segment: "192.0.2.0/24", At: 12, Gone: true}
	asked.Shares.Add(7)
	asked.Shares.Add(255)
	g, err := c.TakeVIPs(t.Context(), to, asked)
	want, _ := l.GrantVIPs(t.Context(), l.asked)
	if err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("got %+v, %v", g, err)
	}
	if asked.Host = "h2"; l.asked != asked {
		t.Errorf("the host was asked %+v, want %+v", l.asked, asked)
	}
	l.err = pando.ErrStoreFull
	if _, err := c.TakeVIPs(t.Context(), to, asked); !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("a holder with an error: %v", err)
	}
}

// Only a member takes VIPs. A host of an earlier build has no such path, and holds none.
func TestOnlyAMemberTakesVIPs(t *testing.T) {
	to, c := taking(t, &leaver{}, "")
	if _, err := c.TakeVIPs(t.Context(), to, edge.VIPTake{}); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a caller that is no host: %v", err)
	}
	r, err := http.Post(to.Endpoint+vipsPath, "", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusBadRequest && r.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a cut take: %s", r.Status)
	}
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	_, err = c.TakeVIPs(t.Context(), pando.Host{Name: "h1", Endpoint: old.URL}, edge.VIPTake{})
	if !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("an earlier build: %v", err)
	}
}
