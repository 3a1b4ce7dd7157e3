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

// everyMember lists the requests that every member may make: reads, the number of instances, the
// removal of a service without its state.
var everyMember = []string{"GET /", "POST /state/", "POST /v1/services/{name}/pin",
	"DELETE /v1/services/{name}/pin", "DELETE /v1/services/{name}"}

// byRight lists the requests that need a right of the member's operators.
var byRight = map[pando.Right][]string{
	pando.RightDeploy: {
		"POST /v1/services", "POST /v1/services/{name}/rollback",
		"POST /v1/services/{name}/rollout/{step}", "DELETE /v1/services/{name}/rollout/{step}",
		"POST /v1/images", "DELETE /v1/images/{digest}",
		"PUT /v1/secrets/{secret}", "DELETE /v1/secrets/{secret}",
		"DELETE /v1/services/{name}/volumes/{volume}", "POST /v1/rebalance",
	},
	pando.RightExec: {
		"POST /v1/services/{name}/exec", "POST /v1/services/{name}/runs",
		"POST /v1/services/{name}/runs/attach", "DELETE /v1/services/{name}/runs/{number}",
	},
	pando.RightAdmit: {"POST /v1/tokens", "DELETE /v1/hosts/{host}/drain"},
}

// ForMembers serves the operators' API to the other hosts of a cluster. It allows reads, changes of
// the number of instances, the removal of a service, and the drain and the end of the caller's own
// membership. Everything else needs a right of the host, so that a captured host starts no program on another.
// Values of environments are hidden from hosts that may not deploy (veil.go).
//
// asker returns the member in the request's certificate; ok is false without one. Its name is
// recorded.
func ForMembers(
	operators http.Handler, asker func(*http.Request) (m pando.Member, ok bool),
) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, fmt.Errorf("%w: this works on a server's host only; `pando hosts` shows the servers",
			pando.ErrForbidden))
	})
	for _, may := range everyMember {
		mux.Handle(may, operators)
	}
	for right, requests := range byRight {
		for _, r := range requests {
			mux.Handle(r, withRight(right, operators))
		}
	}
	for _, prefix := range octaviaPrefixes {
		for _, method := range changing {
			mux.Handle(method+" "+prefix, withRight(pando.RightDeploy, operators))
		}
	}
	// A host may leave, and may send its instances away. That it takes new ones again is not its word.
	for _, own := range []string{"DELETE /v1/hosts/{host}", "PUT /v1/hosts/{host}/drain"} {
		mux.HandleFunc(own, func(w http.ResponseWriter, r *http.Request) {
			if m, _ := callerOf(r.Context()); string(m.Name) != r.PathValue("host") {
				withRight(pando.RightAdmit, operators).ServeHTTP(w, r)
				return
			}
			operators.ServeHTTP(w, r)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, ok := asker(r)
		if !ok {
			refuse(w, r,
				fmt.Errorf("%w: only members of the cluster may ask; `pando up --join` makes this host one",
					pando.ErrForbidden))
			return
		}
		who := r.Header.Get(operatorHeader)
		who = who[:min(len(who), operatorMax-1-len(m.Name))]
		r.Header.Set(operatorHeader, strings.TrimPrefix(who+"@"+string(m.Name), "@"))
		mux.ServeHTTP(w, fromMember(r, m))
	})
}

// withRight refuses the requests of members without a right.
func withRight(right pando.Right, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m, _ := callerOf(r.Context()); !m.Has(right) {
			refuse(w, r, m.Lacks(right))
			return
		}
		next.ServeHTTP(w, r)
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
			r.Out.Header.Del(userHeader)
			if uid, ok := r.In.Context().Value(userKey{}).(uint32); ok {
				r.Out.Header.Set(userHeader, fmt.Sprintf("uid %d", uid))
			}
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
