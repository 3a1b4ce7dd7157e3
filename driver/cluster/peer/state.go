package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"pando.run/pando"
)

const (
	// stateAskMax bounds the bytes of one request of git. Its longest rounds have 32 KiB.
	stateAskMax   = 4 << 20
	stateBackMax  = 5 * time.Second        // an agent's absence, as in a restart
	stateAskAgain = 100 * time.Millisecond // until it is back
)

// State passes requests to the host's own git server. git itself never retries. Requests only read,
// so State retries one if the agent ends before the answer begins. An answer that breaks in the
// middle stays broken.
func (c *Client) State(h pando.Host) http.Handler {
	u, err := c.base(h)
	if err != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeProblem(w, err) })
	}
	return &httputil.ReverseProxy{
		Transport: again{c.http.Transport, c.Clock},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			r.Out.URL.Path = "/peer/state/" + strings.TrimPrefix(r.In.URL.Path, "/")
			r.Out.URL.RawPath = ""
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if !errors.Is(err, pando.ErrTooLarge) {
				err = outOfReach(r.Context(), h, err)
			}
			writeProblem(w, err)
		},
	}
}

// again sends a request until an answer to it begins. Without a clock it sends once.
type again struct {
	http.RoundTripper
	clock pando.Clock
}

func (t again) RoundTrip(r *http.Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		var err error
		text, err = io.ReadAll(io.LimitReader(r.Body, stateAskMax+1))
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		if len(text) > stateAskMax {
			return nil, fmt.Errorf("the request: %w: at most %d bytes", pando.ErrTooLarge, stateAskMax)
		}
	}
	wait, cancel := context.WithTimeout(r.Context(), stateBackMax)
	defer cancel()
	for {
		out := r.Clone(r.Context())
		out.Body, out.ContentLength, out.TransferEncoding = http.NoBody, int64(len(text)), nil
		if len(text) > 0 {
			out.Body = io.NopCloser(bytes.NewReader(text))
		}
		resp, err := t.RoundTripper.RoundTrip(out)
		if err == nil || t.clock == nil || pando.Sleep(wait, t.clock, stateAskAgain) != nil {
			return resp, err
		}
	}
}
