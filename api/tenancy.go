package api

import (
	"fmt"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/access"
)

// everyToken lists the requests that every token may make. The tenant of a request about one
// service is that of the token.
var everyToken = []string{
	"GET /v1/services/{name}", "GET /v1/services/{name}/why", "GET /v1/services/{name}/logs",
	"GET /v1/services/{name}/counters", "GET /v1/services/{name}/revisions",
	"GET /v1/services/{name}/state", "GET /v1/stats", "GET /v1/steering",
	"GET /v1/watch",
}

// everyTokenLists are lists of all tenants, of which the token gets its own part.
var everyTokenLists = []string{
	"GET /v1/services", "GET /v1/secrets", "GET /v1/tenants", "GET /v1/audit",
	"GET /v1/bills",
	"GET /healthz", "GET /readyz", "GET /openapi.json",
}

// byTokenRight lists the requests about one service or secret that need a right of the token.
var byTokenRight = map[access.TokenRight][]string{
	access.TokenScale: {"POST /v1/services/{name}/pin", "DELETE /v1/services/{name}/pin"},
	access.TokenDeploy: {
		"DELETE /v1/services/{name}", "POST /v1/services/{name}/rollback",
		"POST /v1/services/{name}/restart",
		"POST /v1/services/{name}/rollout/{step}", "DELETE /v1/services/{name}/rollout/{step}",
		"PUT /v1/secrets/{secret}", "DELETE /v1/secrets/{secret}",
	},
	access.TokenExec: {
		"POST /v1/services/{name}/exec", "POST /v1/services/{name}/runs",
		"POST /v1/services/{name}/runs/attach", "DELETE /v1/services/{name}/runs/{number}",
	},
}

// ForTenants serves the operators' API to callers from outside the hosts, each with a token of its
// tenant. It allows requests about the services of that tenant, and no others.
//
// asker returns the token of a request, or why it has none. refused gets each refused request.
func ForTenants(
	operators http.Handler, asker func(*http.Request) (access.Token, error),
	refused func(*http.Request, error),
) http.Handler {
	no := func(w http.ResponseWriter, r *http.Request, err error) {
		refused(r, err)
		refuse(w, r, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		t, _ := access.TokenOf(r.Context())
		no(w, r, fmt.Errorf("%w: the token %s has no access to %s %s", pando.ErrForbidden, t.TokenKey,
			r.Method, r.URL.Path))
	})
	for _, may := range everyTokenLists {
		mux.Handle(may, operators)
	}
	own := inTenant(operators, no)
	for _, may := range everyToken {
		mux.Handle(may, own)
	}
	needs := func(right access.TokenRight, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if t, _ := access.TokenOf(r.Context()); !t.Has(right) {
				no(w, r, t.Lacks(right))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux.Handle("POST /v1/services", needs(access.TokenDeploy, operators)) // fenced reads the spec
	// The handler below these takes the tenant of the token.
	for _, prefix := range octaviaPrefixes {
		mux.Handle("GET "+prefix, operators)
		for _, method := range changing {
			mux.Handle(method+" "+prefix, needs(access.TokenDeploy, operators))
		}
	}
	for right, requests := range byTokenRight {
		for _, r := range requests {
			mux.Handle(r, needs(right, own))
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, err := asker(r)
		if err != nil {
			no(w, r, err)
			return
		}
		who := r.Header.Get(operatorHeader)
		as := "token " + t.String()
		if who = who[:min(len(who), max(0, operatorMax-3-len(as)))]; who != "" {
			as += " (" + who + ")"
		}
		r.Header.Set(operatorHeader, as[:min(len(as), operatorMax)])
		mux.ServeHTTP(w, fromTenant(r, t))
	})
}

// inTenant makes the token's tenant that of a request. A client that names no tenant, or the
// default one, means its own.
func inTenant(
	next http.Handler, no func(http.ResponseWriter, *http.Request, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, _ := access.TokenOf(r.Context())
		q := r.URL.Query()
		for _, asked := range q["tenant"] {
			of := pando.Tenant(asked)
			if err := foreign(r.Context(), of); err != nil && of != "" && of != pando.DefaultTenant {
				no(w, r, err)
				return
			}
		}
		q.Set("tenant", string(t.Tenant))
		r.URL.RawQuery = q.Encode()
		next.ServeHTTP(w, r)
	})
}
