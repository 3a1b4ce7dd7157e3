package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
)

// holds returns an asker with a token of tenant acme.
func holds(rights ...access.TokenRight) func(*http.Request) (access.Token, error) {
	t := access.Token{TokenKey: access.TokenKey{Tenant: "acme", Name: "ci"}, May: rights}
	return func(*http.Request) (access.Token, error) { return t, nil }
}

// asked records the requests that pass, with their queries, and those that were refused.
type asked struct{ passed, refused []string }

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.passed = append(a.passed, r.Method+" "+r.URL.RequestURI()+" by "+r.Header.Get(operatorHeader))
	w.WriteHeader(http.StatusOK)
}

func (a *asked) no(r *http.Request, err error) {
	a.refused = append(a.refused, fmt.Sprintf("%s: %v", r.URL.Path, err))
}

// Each request needs its right, and no right opens the requests about hosts, images, other tenants
// or tokens.
func TestATokenOpensTheRequestsOfItsRights(t *testing.T) {
	for _, c := range []struct {
		request string
		needs   access.TokenRight // "-": no token may; "": each may
	}{
		{"GET /v1/services", ""}, {"GET /v1/services/shop", ""}, {"GET /v1/services/shop/why", ""},
		{"GET /v1/services/shop/logs", ""}, {"GET /v1/stats", ""}, {"GET /v1/watch", ""},
		{"GET /v1/steering?service=shop", ""},
		{"GET /v1/services/shop/counters", ""}, {"GET /v1/secrets", ""}, {"GET /v1/tenants", ""},
		{"POST /v1/services/shop/pin", access.TokenScale},
		{"DELETE /v1/services/shop/pin", access.TokenScale},
		{"POST /v1/services", access.TokenDeploy}, {"DELETE /v1/services/shop", access.TokenDeploy},
		{"POST /v1/services/shop/rollback", access.TokenDeploy},
		{"POST /v1/services/shop/restart", access.TokenDeploy},
		{"POST /v1/services/shop/rollout/pause", access.TokenDeploy},
		{"PUT /v1/secrets/key", access.TokenDeploy},
		{"POST /v1/services/shop/exec", access.TokenExec},
		{"POST /v1/services/shop/runs", access.TokenExec},
		{"GET /v2.0/lbaas/pools", ""}, {"POST /v2.0/lbaas/pools", access.TokenDeploy},
		{"PUT /v2/lbaas/pools/p", access.TokenDeploy}, {"DELETE /v2/lbaas/pools/p", access.TokenDeploy},
		{"GET /v1/hosts", "-"}, {"DELETE /v1/hosts/h1", "-"}, {"PUT /v1/hosts/h1/rights/deploy", "-"},
		{"GET /v1/services/shop/fits", "-"}, {"GET /v1/images", "-"}, {"POST /v1/images", "-"},
		{"GET /v1/volumes", "-"}, {"GET /metrics", "-"}, {"GET /metrics/host", "-"},
		{"PATCH /v1/tenants/acme", "-"}, {"GET /v1/tenant-tokens", "-"},
		{"POST /v1/tenants/acme/tokens/more", "-"}, {"POST /v1/tokens", "-"},
		{"GET /state/beta/shop.git/info/refs", "-"}, {"POST /v1/snapshots", "-"},
		{"GET /peer/logs", "-"},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		for _, right := range append(access.TokenRights, "") {
			var api asked
			h := ForTenants(&api, holds(right), api.no)
			want := http.StatusForbidden
			if c.needs == "" || right == c.needs {
				want = http.StatusOK
			}
			if got := do(h, method, path, nil); got != want || len(api.passed) != is01(want == 200) ||
				len(api.refused) != is01(want != 200) {
				t.Errorf("%s with the right %q: %d, want %d; %+v", c.request, right, got, want, api)
			}
		}
	}
}

func is01(b bool) int { return int(is(b)) }

// The tenant of each request about a service is that of the token, for any question.
func TestATokenStaysInItsTenant(t *testing.T) {
	for query, want := range map[string]int{
		"": 200, "?tenant=acme": 200, "?tenant=default": 200, "?tenant=": 200, "?tenant=beta": 403,
		"?tenant=acme&tenant=beta": 403, "?tenant=beta&tenant=acme": 403, "?tenant=default;beta": 200,
		"?tenant=%62eta": 403,
	} {
		var api asked
		h := ForTenants(&api, holds(), api.no)
		got := do(h, "GET", "/v1/services/shop"+query, nil)
		passed := strings.Join(api.passed, " ")
		if got != want || want == 200 && passed != "GET /v1/services/shop?tenant=acme by token acme/ci" {
			t.Errorf("%s: %d, passed %q", query, got, passed)
		}
		if want == 403 && !strings.Contains(strings.Join(api.refused, ""), "of tenant acme and not of") {
			t.Errorf("%s: refused %v", query, api.refused)
		}
	}
}

func TestARequestByATokenIsRecordedUnderItsName(t *testing.T) {
	for name, want := range map[string]string{
		"": "token acme/ci", "anna": "token acme/ci (anna)", "a b": "token acme/ci (a b)",
		strings.Repeat("x", 300): "token acme/ci (" + strings.Repeat("x", operatorMax-16) + ")",
	} {
		var api asked
		do(ForTenants(&api, holds(), api.no), "GET", "/v1/services",
			func(r *http.Request) { r.Header.Set(operatorHeader, name) })
		if len(api.passed) != 1 || !strings.HasSuffix(api.passed[0], " by "+want) {
			t.Errorf("%.20q: %v, want %s", name, api.passed, want)
		}
	}
}

func TestACallerWithoutATokenIsRefused(t *testing.T) {
	var api asked
	h := ForTenants(&api, func(*http.Request) (access.Token, error) {
		return access.Token{}, access.ErrBadToken
	}, api.no)
	if got := do(h, "GET", "/v1/services", nil); got != 403 || len(api.passed) > 0 ||
		len(api.refused) != 1 {
		t.Errorf("%d, %+v", got, api)
	}
}

// shared is a cluster of two tenants.
type shared struct {
	access.Operators
	deployed []pando.Spec
}

func both[T any](of func(pando.Tenant) T) ([]T, error) { return []T{of("acme"), of("beta")}, nil }

func (*shared) Services(context.Context) ([]pando.ServiceStatus, error) {
	return both(func(t pando.Tenant) (s pando.ServiceStatus) {
		s.ServiceKey = pando.ServiceKey{Tenant: t, Name: "shop"}
		return s
	})
}

func (*shared) Stats(context.Context, pando.ServiceKey) ([]pando.InstanceUsage, error) {
	return both(func(t pando.Tenant) pando.InstanceUsage {
		return pando.InstanceUsage{Service: pando.ServiceKey{Tenant: t, Name: "shop"}}
	})
}

func (*shared) Secrets(context.Context) ([]pando.SecretStatus, error) {
	return both(func(t pando.Tenant) pando.SecretStatus {
		return pando.SecretStatus{SecretKey: pando.SecretKey{Tenant: t, Name: "key"}}
	})
}

func (*shared) Tenants(context.Context) ([]access.TenantStatus, error) {
	return both(func(t pando.Tenant) access.TenantStatus {
		return access.TenantStatus{Account: access.Account{Tenant: t}}
	})
}

// Bills has a line for each tenant that a query wants.
func (*shared) Bills(_ context.Context, q access.BillQuery) (out []access.BillLine, err error) {
	all, err := both(func(t pando.Tenant) access.BillLine {
		return access.BillLine{Tenant: t, Work: pando.Work{Decisions: 3, BytesOut: 7}}
	})
	for _, l := range all {
		if q.Tenant == "" || l.Tenant == q.Tenant {
			out = append(out, l)
		}
	}
	return out, err
}

func (*shared) Watch(context.Context, pando.StoreRevision) <-chan pando.Change {
	out := make(chan pando.Change, 9)
	out <- pando.Change{Revision: 1, Kind: pando.KindBookmark}
	for n, t := range []pando.Tenant{"beta", "acme"} {
		s := pando.Service{ServiceKey: pando.ServiceKey{Tenant: t, Name: "shop"}}
		out <- pando.Change{Revision: pando.StoreRevision(n + 2), Kind: pando.KindService, Key: s.Key(),
			Value: s}
	}
	out <- pando.Change{Revision: 4, Kind: pando.KindMember, Key: pando.MemberKey("beta-host")}
	close(out)
	return out
}

func (s *shared) Deploy(
	_ context.Context, spec pando.Spec, _ pando.Asker,
) (pando.ServiceStatus, error) {
	s.deployed = append(s.deployed, spec)
	return pando.ServiceStatus{}, nil
}

func (*shared) State() http.Handler { return http.NotFoundHandler() }

// No list and no stream names another tenant or a host.
func TestATokenSeesItsTenantAlone(t *testing.T) {
	ops := OperatorsHandler(&shared{}, func(context.Context) error { return nil })
	var api asked
	h := ForTenants(ops, holds(), api.no)
	for _, path := range []string{"/v1/services", "/v1/stats", "/v1/secrets", "/v1/tenants",
		"/v1/watch", "/v1/bills"} {
		all := scraped(t, ops, path, "")
		own := scraped(t, h, path, "")
		if !strings.Contains(all, "beta") || strings.Contains(own, "beta") ||
			!strings.Contains(own, "acme") {
			t.Errorf("%s: the operator gets %s and the token %s", path, all, own)
		}
	}
	if got := do(h, "GET", "/v1/bills?tenant=beta", nil); got != http.StatusForbidden {
		t.Errorf("a token that asks for the bill of another tenant gets %d", got)
	}
	if got := scraped(t, h, "/v1/watch", ""); !strings.Contains(got, "id: 4") {
		t.Errorf("the end of a foreign commit is missing, and a client could not resume: %s", got)
	}
	if _, err := (fenced{&shared{}}).Hosts(access.WithToken(t.Context(),
		access.Token{})); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a token sees hosts: %v", err)
	}
}

// A token deploys into its tenant, an image of a registry alone, and names no digest.
func TestWhatATokenDeploys(t *testing.T) {
	image := pando.Image{Reference: "registry.example/shop:1", Digest: "sha256:beta", Host: "h1",
		Inside: true}
	program := pando.Spec{Name: "shop", Command: []string{"sh"}}
	foreign := pando.Spec{Name: "shop", Image: image, Tenant: "beta"}
	for name, c := range map[string]struct {
		spec   pando.Spec
		right  access.TokenRight
		tenant pando.Tenant // of the deployed spec; "": refused
		text   string
	}{
		"an image":           {pando.Spec{Name: "shop", Image: image}, "", "acme", ""},
		"of its tenant":      {pando.Spec{Name: "shop", Image: image, Tenant: "acme"}, "", "acme", ""},
		"of another tenant":  {foreign, "", "", "not of beta"},
		"a program":          {program, "", "", "may not host"},
		"a program by right": {program, access.TokenHost, "acme", ""},
	} {
		var ops shared
		var api asked
		h := ForTenants(OperatorsHandler(&ops, nil), holds(access.TokenDeploy, c.right), api.no)
		body, err := json.Marshal(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/services", strings.NewReader(string(body))))
		if c.tenant == "" {
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), c.text) ||
				len(ops.deployed) > 0 {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			continue
		}
		if w.Code != http.StatusOK || len(ops.deployed) != 1 ||
			ops.deployed[0].Tenant != c.tenant || ops.deployed[0].Image.Digest != "" ||
			ops.deployed[0].Image.Inside {
			t.Errorf("%s: %d %s, deployed %+v", name, w.Code, w.Body, ops.deployed)
		}
	}
}
