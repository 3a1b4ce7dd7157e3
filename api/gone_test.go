package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"testing/synctest"

	"pando.run/pando"
	"pando.run/pando/access"
)

// left is the response of a caller that has disconnected.
type left struct {
	http.ResponseWriter
	statuses []int
}

func (w *left) WriteHeader(status int)    { w.statuses = append(w.statuses, status) }
func (w *left) Write([]byte) (int, error) { return 0, syscall.EPIPE }
func (w *left) FlushError() error         { return syscall.EPIPE }

// idle has no services and no changes.
type idle struct{ access.Operators }

func (idle) State() http.Handler { return http.NotFoundHandler() }

func (idle) Services(context.Context) ([]pando.ServiceStatus, error) { return nil, nil }

func (idle) Service(context.Context, pando.ServiceKey) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{}, pando.ErrNotFound
}

func (idle) Watch(context.Context, pando.StoreRevision) <-chan pando.Change { return nil }

// A caller that leaves before its answer causes one status, no panic and no line in the log. This
// holds if the server notices the departure before it writes or as it writes.
func TestAnAskerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a silent watch learns of it at its next sign of life
		ended, end := context.WithCancel(t.Context())
		end()
		handler := OperatorsHandler(idle{}, nil)
		for path, want := range map[string]int{
			"/v1/services": 200, "/v1/services/none": 404, "/v1/watch": 200,
		} {
			for _, ctx := range []context.Context{t.Context(), ended} {
				w := &left{ResponseWriter: httptest.NewRecorder()}
				handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
				if len(w.statuses) != 1 || w.statuses[0] != want {
					t.Errorf("GET %s, gone: %v: statuses %v, want %d once",
						path, ctx.Err() != nil, w.statuses, want)
				}
			}
		}
	})
}
