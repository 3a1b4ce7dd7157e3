package image

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// impatient is a clock on which a source stalls soon.
type impatient struct{ hurried }

func (c *impatient) After(d time.Duration) (<-chan time.Time, func()) {
	if d == stallsMax {
		d = 20 * time.Millisecond
	}
	return c.hurried.After(d)
}

// A registry that begins each answer and then says nothing holds no pull, whatever was asked for.
func TestARegistryThatSaysNothingMoreIsGivenUp(t *testing.T) {
	for _, kind := range []string{"/manifests/v1", "/blobs/"} {
		clean(t)
		r := served(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, kind) {
					next.ServeHTTP(w, q)
					return
				}
				w.Header().Set("Content-Length", "1000")
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-q.Context().Done()
			})
		})
		reference, _ := push(t, r, "v1")
		s := open(t)
		s.Clock = &impatient{}
		_, _, err := s.Resolve(t.Context(), inside(reference)) // its manifest and its configuration
		if err == nil || !strings.Contains(err.Error(), "registry 127.0.0.1") ||
			!strings.Contains(err.Error(), "fewer than 64 KiB") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
