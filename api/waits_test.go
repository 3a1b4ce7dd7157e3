package api

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
)

// hasty is a clock whose waits end at once.
type hasty struct{ pando.Clock }

func (hasty) After(time.Duration) (<-chan time.Time, func()) {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c, func() {}
}

// waitingDeploys are operators whose deploys wait for a registry.
type waitingDeploys struct {
	shared
	told chan struct{}
}

func (d *waitingDeploys) Deploy(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	done := pando.Waiting(ctx, hasty{}, "registry r.example")
	<-d.told // the client has it before the answer
	done()
	return d.shared.Deploy(ctx, s, by)
}

// A client hears what its deploy waits for, also through the agent of another host.
func TestADeployTellsWhatItWaitsFor(t *testing.T) {
	ops := &waitingDeploys{told: make(chan struct{}, 1)}
	server := httptest.NewServer(OperatorsHandler(ops, nil))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	relay := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) }})
	defer relay.Close()
	for _, s := range []*httptest.Server{server, relay} {
		c := NewClient("", ticking{})
		c.http = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
			}}}
		var heard []string
		c.Waits = func(what string) {
			heard = append(heard, what)
			ops.told <- struct{}{}
		}
		_, err := c.Deploy(t.Context(), pando.Spec{Name: "shop", Command: []string{"sh"}})
		if want := []string{"registry r.example"}; err != nil || !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q (%v)", heard, want, err)
		}
		c.http.CloseIdleConnections()
	}
}

// codes records the status codes of a response.
type codes struct {
	http.ResponseWriter
	all []int
}

func (c *codes) WriteHeader(code int) { c.all = append(c.all, code) }

// Interim answers end with the begin of the answer, and each reason comes once. Reads have them too.
func TestInterimAnswersEndWithTheAnswer(t *testing.T) {
	to := &codes{ResponseWriter: httptest.NewRecorder()}
	i := &interim{ResponseWriter: to, said: map[string]bool{}}
	for _, what := range []string{"host2", "host3", "", "host2"} {
		i.tell(what)
	}
	i.WriteHeader(http.StatusOK)
	i.tell("host4")
	if _, err := i.Write([]byte("[]")); err != nil || !slices.Equal(to.all, []int{102, 102, 200}) ||
		to.Header().Get(waitsHeader) != "" {
		t.Errorf("codes %v and header %v, %v", to.all, to.Header(), err)
	}
	told := make(chan struct{})
	h := reportingWaits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer pando.Waiting(r.Context(), hasty{}, "host2")()
		<-told
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	c := NewClient("", ticking{})
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		}}}
	defer c.http.CloseIdleConnections()
	c.Waits = func(string) { close(told) }
	if _, err := c.Services(t.Context()); err != nil {
		t.Error(err)
	}
}
