package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// book is operators that keep an audit. Each change fails with err.
type book struct {
	access.Operators
	mu    sync.Mutex
	deeds []access.Deed
	asked access.DeedQuery
	err   error
	lost  error // of the record
}

func (b *book) Record(_ context.Context, p *access.Pending) error {
	p.Lock()
	defer p.Unlock()
	p.Closed = true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deeds = append(b.deeds, p.Deed)
	return b.lost
}

func (b *book) Deeds(_ context.Context, q access.DeedQuery) (access.Audit, error) {
	b.asked = q
	return access.Audit{Deeds: []access.Deed{{ID: "1", From: "192.0.2.1", Owner: "acme"},
		{ID: "2", From: "192.0.2.2", Tenant: "acme"}}}, nil
}

func (b *book) Pin(
	context.Context, pando.ServiceKey, int, time.Duration, pando.Asker,
) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{}, b.err
}

func (b *book) RemoveTenant(context.Context, pando.Tenant, pando.Asker) error { return b.err }

func (b *book) RemoveToken(context.Context, access.TokenKey, pando.Asker) error { return b.err }

func (b *book) RemoveSecret(context.Context, pando.SecretKey, pando.Asker) error { return b.err }

func (b *book) SetRight(
	context.Context, pando.HostName, pando.Right, bool, pando.Asker,
) error {
	return b.err
}

func (b *book) Services(context.Context) ([]pando.ServiceStatus, error) { return nil, nil }

func (b *book) State() http.Handler { return http.NotFoundHandler() }

// asks sends a request to the face of a book.
func asks(face http.Handler, method, path, body string, with func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = "192.0.2.7:999"
	if with != nil {
		with(r)
	}
	w := httptest.NewRecorder()
	face.ServeHTTP(w, r)
	return w.Result()
}

// Each change is recorded with its caller, its object and its outcome. A read is not.
func TestEachChangeIsRecorded(t *testing.T) {
	b := &book{}
	face := OperatorsHandler(b, nil)
	for _, c := range []struct{ request, body, verb, object, owner, detail string }{
		{"POST /v1/services/web/pin", `{"instances":2}`, "pin", "service web", "default", ""},
		{"POST /v1/services/web/pin?tenant=acme", `{"instances":2}`, "pin", "service acme/web", "acme",
			""},
		{"DELETE /v1/tenants/acme", "", "remove-tenant", "tenant acme", "acme", ""},
		{"DELETE /v1/tenants/acme/tokens/ci", "", "remove-tenant-token", "token acme/ci", "acme", ""},
		{"DELETE /v1/secrets/key?tenant=beta", "", "remove-secret", "secret beta/key", "beta", ""},
		{"PUT /v1/hosts/host2/rights/deploy", "", "allow", "host host2", "", "deploy"},
	} {
		b.deeds = nil
		method, path, _ := strings.Cut(c.request, " ")
		resp := asks(face, method, path, c.body, func(r *http.Request) {
			r.Header.Set(operatorHeader, "anna")
		})
		want := access.Deed{By: "anna", From: "192.0.2.7", Verb: c.verb, Object: c.object,
			Owner: pando.Tenant(c.owner), Detail: c.detail, Result: access.DeedDone}
		if resp.StatusCode >= 300 || len(b.deeds) != 1 || b.deeds[0] != want {
			t.Errorf("%s: %d, %+v, want %+v", c.request, resp.StatusCode, b.deeds, want)
		}
	}
	b.deeds = nil
	asks(face, "GET", "/v1/services", "", nil)
	if len(b.deeds) != 0 {
		t.Errorf("a read is recorded: %+v", b.deeds)
	}
}

func TestARefusedChangeIsRecordedWithItsReason(t *testing.T) {
	b := &book{err: pando.ErrRefused}
	face := OperatorsHandler(b, nil)
	asks(face, "POST", "/v1/services/web/pin", `{"instances":2}`, nil)
	asks(face, "POST", "/v1/services/web/pin", `{"instances":-2}`, nil)
	if len(b.deeds) != 2 || b.deeds[0].Result != "refused" ||
		!strings.Contains(b.deeds[1].Result, "contract") {
		t.Errorf("%+v", b.deeds)
	}
}

// A caller learns that its change is missing in the audit.
func TestAChangeWithoutARecordFails(t *testing.T) {
	b := &book{lost: errors.New("no space left")}
	resp := asks(OperatorsHandler(b, nil), "DELETE", "/v1/tenants/acme", "", nil)
	var text bytes.Buffer
	_, _ = text.ReadFrom(resp.Body)
	if resp.StatusCode < 500 || !strings.Contains(text.String(), "was carried out") {
		t.Errorf("%d %s", resp.StatusCode, text.String())
	}
}

// The proven caller is that of the door: a token, a member's certificate, or the user of a socket.
// No header of a caller changes it.
func TestTheSourceIsProven(t *testing.T) {
	b := &book{}
	face := OperatorsHandler(b, nil)
	forged := func(r *http.Request) {
		r.Header.Set(operatorHeader, "anna")
		r.Header.Set(userHeader, "uid 0")
	}
	pin := func(h http.Handler, with func(*http.Request)) access.Deed {
		b.deeds = nil
		asks(h, "POST", "/v1/services/web/pin", `{"instances":2}`, with)
		if len(b.deeds) != 1 {
			t.Fatalf("%+v", b.deeds)
		}
		return b.deeds[0]
	}
	no := func(*http.Request, error) {}
	got := pin(ForTenants(face, holds(access.TokenScale), no), forged)
	if got.Source != "token acme/ci" || got.Tenant != "acme" || got.By != "anna" ||
		got.From != "192.0.2.7" || got.Object != "service acme/web" {
		t.Errorf("by a token: %+v", got)
	}
	m := pando.Member{Name: "host2"}
	member := ForMembers(face, func(*http.Request) (pando.Member, bool) { return m, true })
	if got = pin(member, forged); got.Source != "host host2" || got.By != "anna" ||
		got.From != "192.0.2.7 uid 0" {
		t.Errorf("by a member: %+v", got)
	}
	got = pin(member, func(r *http.Request) { r.Header.Set(userHeader, "uid 0\nuid 1") })
	if got.From != "192.0.2.7" || got.By != "" {
		t.Errorf("by a member with a bad header: %+v", got)
	}
	got = pin(face, func(r *http.Request) {
		forged(r)
		*r = *r.WithContext(FromUser(r.Context(), 1000))
	})
	if got.Source != "" || got.From != "uid 1000" {
		t.Errorf("by a socket: %+v", got)
	}
}

// A token asks for the deeds of its tenant, and sees no address of other callers.
func TestATokenSeesTheAuditOfItsTenant(t *testing.T) {
	b := &book{}
	face := ForTenants(OperatorsHandler(b, nil), holds(), func(*http.Request, error) {})
	resp := asks(face, "GET", "/v1/audit?actor=x&max=3&after=4&wait_seconds=1.5", "", nil)
	var a access.Audit
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Deeds) != 2 {
		t.Fatalf("%+v, %v", a, err)
	}
	want := access.DeedQuery{Source: "x", Tenant: "acme", Max: 3, After: 4,
		Wait: 1500 * time.Millisecond}
	if b.asked != want || a.Deeds[0].From != "" || a.Deeds[1].From != "192.0.2.2" {
		t.Errorf("asked %+v, got %+v", b.asked, a.Deeds)
	}
	if resp := asks(face, "GET", "/v1/audit?tenant=beta", "", nil); resp.StatusCode != 403 {
		t.Errorf("another tenant: %d", resp.StatusCode)
	}
	if resp := asks(face, "DELETE", "/v1/audit", "", nil); resp.StatusCode < 400 {
		t.Errorf("a deletion: %d", resp.StatusCode)
	}
}
