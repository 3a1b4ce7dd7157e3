package image

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// impatient is a clock on which a source stalls soon.
type impatient struct{ hurried }

func (c *impatient) After(d time.Duration) (<-chan time.Time, func()) {
	if d >= stallsMax {
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
		_, _, err := s.Resolve(t.Context(), "", inside(reference)) // its manifest and its configuration
		if err == nil || !strings.Contains(err.Error(), "registry 127.0.0.1") ||
			!strings.Contains(err.Error(), "fewer than 64 KiB") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// The registry of one tenant that drips the bytes of a blob holds up nobody who has it from
// elsewhere.
func TestASlowRegistryHoldsUpNoOther(t *testing.T) {
	clean(t)
	begun, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/") {
				r := httptest.NewRecorder()
				next.ServeHTTP(r, q)
				if r.Body.Len() > 1<<19 { // a layer
					once.Do(func() { close(begun) })
					<-end
				}
			}
			next.ServeHTTP(w, q)
		})
	})
	fast := served(t, nil)
	reference, img := push(t, slow, "v1")
	other := strings.TrimPrefix(fast.URL, "http://") + "/else/where:v1"
	write(t, fast, other, img)
	s := open(t)
	i, _, err := s.Resolve(t.Context(), "", inside(reference))
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() { held <- s.Pull(t.Context(), i, nil) }()
	<-begun
	pulled(t, s, other) // all its layers are being pulled already
	close(end)
	if err := <-held; err != nil {
		t.Error(err)
	}
}
