package peer

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// endless is a text without an end, after a beginning.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	for n := range b {
		b[n] = ' '
	}
	if e.read == 0 {
		b[0] = '['
	}
	e.read += int64(len(b))
	return len(b), nil
}

// An answer without an end is refused at its bound, and read no further.
func TestAnAnswerIsBounded(t *testing.T) {
	var into []int
	e := &endless{}
	if err := readAnswer(e, 1<<20, &into); !errors.Is(err, pando.ErrTooLarge) || e.read > 4<<20 {
		t.Errorf("%v after %d bytes", err, e.read)
	}
	e = &endless{}
	after := io.MultiReader(strings.NewReader("[1] "), e)
	if err := readAnswer(after, 1<<20, &into); err != nil || len(into) != 1 || e.read > 1<<20 {
		t.Errorf("an answer with more behind it: %v, %v after %d bytes", into, err, e.read)
	}
}

// A hostile host does not fill the memory of the asker, and the error says what its answer was.
func TestAHostileAnswerIsNamed(t *testing.T) {
	for what, c := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"without an end": {func(w http.ResponseWriter) { _, _ = io.Copy(w, &endless{}) },
			"cannot be read: too large"},
		"no JSON": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
			"cannot be read: invalid character"},
		"cut": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "[1,") }, "does not answer"},
	} {
		t.Run(what, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				c.answer(w)
			}))
			defer s.Close()
			p := New(Reach{Clock: clock.Clock{}})
			defer p.Close()
			var was, is runtime.MemStats
			runtime.ReadMemStats(&was)
			began := time.Now()
			var into []int
			err := p.get(t.Context(), pando.Host{Name: "h2", Endpoint: s.URL}, "/peer/usage", nil, &into)
			runtime.ReadMemStats(&is)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!errors.Is(err, pando.ErrUnavailable) {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if more := is.TotalAlloc - was.TotalAlloc; more > 8*hostAnswerMax {
				t.Errorf("%d MiB were used", more>>20)
			}
		})
	}
}
