package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"pando.run/pando"
)

// ForMembers is the operators' API for the other hosts of a cluster: everything that reads. shown says whether the asker has
// shown a certificate. Changes are asked on the server's host, so that a host that falls to somebody changes no service.
func ForMembers(operators http.Handler, shown func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !shown(r):
			fail(w, fmt.Errorf("%w: only members of the cluster may ask; `pando up --join` makes this host one", pando.ErrForbidden), nil)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			fail(w, fmt.Errorf("%w: services are changed on the server's host alone; `pando hosts` shows which it is", pando.ErrForbidden), nil)
		default:
			operators.ServeHTTP(w, r)
		}
	})
}

// Elsewhere serves the operators' API of a server that is on another host.
func Elsewhere(server string, t http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport:     t,
		FlushInterval: -1, // logs and events at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: server})
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return
			}
			if !errors.Is(err, context.DeadlineExceeded) && errors.As(err, new(*net.OpError)) {
				err = fmt.Errorf("the link is cut, or the server is down: %w", err)
			}
			fail(w, fmt.Errorf("%w: the server at %s does not answer (%w); services and connections of this host go on", pando.ErrUnavailable, server, err), nil)
		},
	}
}
