package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
)

// The key of a request is its caller's. Another tenant, a member or an operator uses the same key for
// another request, and one caller with many keys pushes out none of the others.
func TestAKeyOfOneCallerIsNoKeyOfAnother(t *testing.T) {
	table := newKeys()
	send := func(who func(*http.Request) *http.Request, key, body string) error {
		var err error
		h := table.naming(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n := namedOf(r.Context())
			_, _ = r.Body.Read(make([]byte, 64))
			err = n.admit()
		}))
		r := httptest.NewRequest(http.MethodPost, "/v1/services", strings.NewReader(body))
		r.Header.Set(keyHeader, key)
		h.ServeHTTP(httptest.NewRecorder(), who(r))
		return err
	}
	tenant := func(name pando.Tenant) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request {
			return fromTenant(r, access.Token{TokenKey: access.TokenKey{Tenant: name, Name: "ci"}})
		}
	}
	callers := map[string]func(*http.Request) *http.Request{
		"acme": tenant("acme"), "bank": tenant("bank"),
		"a host":      func(r *http.Request) *http.Request { return fromMember(r, pando.Member{Name: "h1"}) },
		"an operator": func(r *http.Request) *http.Request { return r },
	}
	for name, who := range callers {
		if err := send(who, "key", name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := range 2 * keysOfMax {
		if err := send(callers["acme"], fmt.Sprint(n), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for name, who := range callers {
		if err := send(who, "key", name+" and more"); (err == nil) != (name == "acme") {
			t.Errorf("the key of %s for another request: %v", name, err)
		}
	}
}
