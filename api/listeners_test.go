package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// quiet is a cluster whose watches never bring a change.
type quiet struct{ access.Operators }

func (quiet) Watch(ctx context.Context, _ pando.StoreRevision) <-chan pando.Change {
	out := make(chan pando.Change)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func (quiet) State() http.Handler { return http.NotFoundHandler() }

// A tenant that holds all its seats locks out no other tenant, no host and no operator, and gets its
// seats back when its callers leave.
func TestATenantThatHoldsManyWatchesLocksOutNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ops := OperatorsHandler(quiet{}, nil)
		token := func(tenant pando.Tenant) func(*http.Request) *http.Request {
			return func(r *http.Request) *http.Request {
				return fromTenant(r, access.Token{TokenKey: access.TokenKey{Tenant: tenant, Name: "ci"}})
			}
		}
		host := func(r *http.Request) *http.Request {
			return fromMember(r, pando.Member{Name: "h2"})
		}
		operator := func(r *http.Request) *http.Request { return r }
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var open sync.WaitGroup
		// watch returns the status of a watch that is open for an hour, or at once refused.
		watch := func(ctx context.Context, as func(*http.Request) *http.Request) (int, string) {
			w := httptest.NewRecorder()
			open.Go(func() {
				ops.ServeHTTP(w, as(httptest.NewRequestWithContext(ctx, "GET", "/v1/watch", nil)))
			})
			synctest.Wait()
			return w.Code, w.Body.String()
		}
		for n := range listenersBound.Each {
			if got, text := watch(ctx, token("acme")); got != 200 {
				t.Fatalf("watch %d: %d %s", n, got, text)
			}
		}
		got, text := watch(ctx, token("acme"))
		if got != http.StatusConflict || !strings.Contains(text, "64 of the 64") ||
			!strings.Contains(text, "tenant acme") {
			t.Errorf("one more: %d %s", got, text)
		}
		for who, as := range map[string]func(*http.Request) *http.Request{
			"another tenant": token("beta"), "a host": host, "an operator": operator,
		} {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			if got, text := watch(ctx, as); got != 200 {
				t.Errorf("%s: %d %s", who, got, text)
			}
			cancel()
		}
		leave()
		open.Wait()
		again, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if got, text := watch(again, token("acme")); got != 200 {
			t.Errorf("after they left: %d %s", got, text)
		}
		cancel()
		open.Wait()
	})
}

// gone is a caller that has left before its first byte.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, errors.New("it is gone") }

// A caller that leaves before its answer begins gives its seat back.
func TestACallerThatLeavesEarlyKeepsNoSeat(t *testing.T) {
	ops := OperatorsHandler(quiet{}, nil)
	for range listenersBound.Total + 1 {
		ctx, leave := context.WithCancel(t.Context())
		leave()
		ops.ServeHTTP(gone{httptest.NewRecorder()},
			httptest.NewRequestWithContext(ctx, "GET", "/v1/watch", nil))
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	ops.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/v1/watch", nil))
	if w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
