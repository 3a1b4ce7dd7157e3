package api

import (
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"pando.run/pando"
)

// waitsHeader is the header of an interim answer (102): what the request waits for.
const waitsHeader = "Pando-Waits"

// reportingWaits sends an interim answer when the work of a request waits for another machine, such as a
// registry. A reverse proxy passes it on.
func reportingWaits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !r.ProtoAtLeast(1, 1) {
			next.ServeHTTP(w, r)
			return
		}
		// The handler waits during this call, so the writer is free.
		ctx := pando.TellWaits(r.Context(), func(what string) {
			if what == "" {
				return
			}
			w.Header().Set(waitsHeader, what)
			w.WriteHeader(http.StatusProcessing)
			w.Header().Del(waitsHeader)
		})
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

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
