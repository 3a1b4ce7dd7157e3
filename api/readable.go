package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
)

// Readable serves the part of the operators' API that needs no protection by the socket: monitoring
// and clones of states. It changes nothing and shows no spec.
//
// A script in any page can reach it through a browser on the same machine. So it refuses requests
// from a page and requests for a host name other than this machine's. A page can point a foreign
// name at any address. names are the names of this machine.
func Readable(operators http.Handler, names ...string) http.Handler {
	mux := http.NewServeMux()
	for _, pattern := range []string{
		"GET /healthz", "GET /readyz", "GET /metrics", "GET " + HostMetricsPath,
		"GET /openapi.json", "GET /state/", "POST /state/",
	} {
		mux.Handle(pattern, operators)
	}
	next := known(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); origin != "" {
			fail(w, fmt.Errorf("%w: a page of %.100q asks; pages are not answered here",
				pando.ErrForbidden, origin), nil)
			return
		}
		if !ownName(r.Host, names) {
			fail(w,
				fmt.Errorf("%w: the name %.100q is not this machine's; ask for its address or for localhost",
					pando.ErrForbidden, r.Host), nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownName reports whether a Host header is an address or a name of this machine.
func ownName(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return host == "" || slices.ContainsFunc(append(names, "localhost"),
		func(own string) bool { return strings.EqualFold(own, host) })
}
