package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"pando.run/pando"
)

// ForMembers serves the operators' API to the other hosts of a cluster. It allows reads, changes of
// the number of instances, the removal of a service, and the end of the caller's own membership.
// Deploys are allowed on the server's host alone, so that a captured host starts no program on
// another. Values of environments are hidden (veil.go).
//
// asker returns the name of the member in the request's certificate, or "" without one. The name is
// recorded.
func ForMembers(operators http.Handler, asker func(*http.Request) string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, fmt.Errorf("%w: this works on the server's host only; `pando hosts` shows it",
			pando.ErrForbidden), nil)
	})
	for _, may := range []string{"GET /", "POST /state/", "POST /v1/services/{name}/pin",
		"DELETE /v1/services/{name}/pin", "DELETE /v1/services/{name}"} {
		mux.Handle(may, operators)
	}
	mux.HandleFunc("DELETE /v1/hosts/{host}", func(w http.ResponseWriter, r *http.Request) {
		if h := r.PathValue("host"); asker(r) != h {
			fail(w,
				fmt.Errorf("%w: a host ends its own membership; that of host %s is ended on the server's "+
					"host: `pando hosts rm %s`", pando.ErrForbidden, h, h), nil)
			return
		}
		operators.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := asker(r)
		if from == "" {
			fail(w,
				fmt.Errorf("%w: only members of the cluster may ask; `pando up --join` makes this host one",
					pando.ErrForbidden), nil)
			return
		}
		who := r.Header.Get(operatorHeader)
		who = who[:min(len(who), operatorMax-1-len(from))]
		r.Header.Set(operatorHeader, strings.TrimPrefix(who+"@"+from, "@"))
		mux.ServeHTTP(w, fromMember(r))
	})
}

// The header with the operator's name for the record (Asking.Operator), and the longest name.
const (
	operatorHeader = "Pando-Operator"
	operatorMax    = 100
)

// Elsewhere forwards to the operators' API of a server on another host.
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
			fail(w,
				fmt.Errorf("%w: the server at %s does not answer (%w); services and connections of this host "+
					"continue", pando.ErrUnavailable, server, err), nil)
		},
	}
}
