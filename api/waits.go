package api

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"

	"pando.run/pando"
)

// waitsHeader is the header of an interim answer (102): what the request waits for.
const waitsHeader = "Pando-Waits"

// reportingWaits sends an interim answer when the work of a request waits for another machine, such as a
// registry or an agent. A reverse proxy passes it on.
func reportingWaits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.ProtoAtLeast(1, 1) {
			next.ServeHTTP(w, r)
			return
		}
		i := &interim{ResponseWriter: w, said: map[string]bool{}}
		defer i.begin()
		next.ServeHTTP(i, r.WithContext(pando.TellWaits(r.Context(), i.tell)))
	})
}

// interim sends interim answers, each once, until the answer begins. The handler waits meanwhile, so it
// writes no header.
type interim struct {
	http.ResponseWriter
	mu    sync.Mutex
	said  map[string]bool
	begun bool
}

func (i *interim) tell(what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if what == "" || i.begun || i.said[what] {
		return
	}
	i.said[what] = true
	i.Header().Set(waitsHeader, what)
	i.ResponseWriter.WriteHeader(http.StatusProcessing)
	i.Header().Del(waitsHeader)
}

// begin ends the interim answers.
func (i *interim) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begun = true
}

// WriteHeader implements http.ResponseWriter.
func (i *interim) WriteHeader(code int) {
	i.begin()
	i.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (i *interim) Write(b []byte) (int, error) {
	i.begin()
	return i.ResponseWriter.Write(b)
}

// Hijack implements http.Hijacker, for sessions.
func (i *interim) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	i.begin()
	return http.NewResponseController(i.ResponseWriter).Hijack()
}

// Unwrap serves an http.ResponseController.
func (i *interim) Unwrap() http.ResponseWriter { return i.ResponseWriter }

// traced returns a request that reports interim answers to the client's Waits.
func (c *Client) traced(r *http.Request) *http.Request {
	if c.Waits == nil {
		return r
	}
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			if what := h.Get(waitsHeader); what != "" {
				c.Waits(what)
			}
			return nil
		},
	}))
}
