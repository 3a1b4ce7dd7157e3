package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"pando.run/pando"
)

// The paths of objects of states on their way between hosts.
const (
	takePath = "/peer/copy"
	givePath = "/peer/fetch"
)

// wantedBytesMax bounds a request for objects, which names commits that the asker has.
const wantedBytesMax = 8 << 20

// ShipState sends objects of a state to a host that keeps a copy. write writes them while they are
// sent.
func (c *Client) ShipState(
	ctx context.Context, h pando.Host, write func(io.Writer) error,
) (got pando.Receipt, err error) {
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = w.CloseWithError(write(w)) // the request ends with this error
	}()
	err = c.read(ctx, h, http.MethodPost, takePath, nil, r, &got)
	r.CloseWithError(io.ErrClosedPipe) // an early answer ends the writer
	<-written
	return got, err
}

// FetchState opens the objects of a state that this host lacks.
func (c *Client) FetchState(
	ctx context.Context, h pando.Host, q pando.StateWanted,
) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(json.NewEncoder(w).Encode(q)) }()
	defer r.CloseWithError(io.ErrClosedPipe)
	ctx, cancel := context.WithCancel(ctx)
	body, err := c.call(ctx, h, http.MethodPost, givePath, nil, r)
	if err != nil {
		cancel()
		return nil, err
	}
	return ending{body, cancel}, nil
}

// CopyHandler adds the states that hosts send to each other to the handler of an agent.
func CopyHandler(next http.Handler, a pando.HostAgent) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("POST "+takePath, func(w http.ResponseWriter, r *http.Request) {
		from := Asker(r.Context())
		if from == "" {
			writeProblem(w, fmt.Errorf("%w: only a host of the cluster sends a state", pando.ErrForbidden))
			return
		}
		got, err := a.TakeState(r.Context(), from, r.Body)
		answer(w, got, err)
	})
	mux.HandleFunc("POST "+givePath, func(w http.ResponseWriter, r *http.Request) {
		var q pando.StateWanted
		if err := json.NewDecoder(io.LimitReader(r.Body, wantedBytesMax)).Decode(&q); err != nil {
			writeProblem(w, fmt.Errorf("%w: a request for a state: %w", pando.ErrInvalid, err))
			return
		}
		out := &begun{w: w}
		if err := a.GiveState(r.Context(), q, out); err != nil && !out.wrote {
			writeProblem(w, err)
		}
	})
	return mux
}

// begun notes the first byte of an answer, after which no problem can be sent.
type begun struct {
	w     http.ResponseWriter
	wrote bool
}

// Write implements io.Writer.
func (b *begun) Write(p []byte) (int, error) {
	if !b.wrote {
		b.w.Header().Set("Content-Type", "application/octet-stream")
	}
	b.wrote = true
	return b.w.Write(p)
}

type askerKey struct{}

// WithAsker returns a context with the host that sent a request.
func WithAsker(ctx context.Context, h pando.HostName) context.Context {
	return context.WithValue(ctx, askerKey{}, h)
}

// Asker returns the host that sent a request, or "".
func Asker(ctx context.Context) pando.HostName {
	h, _ := ctx.Value(askerKey{}).(pando.HostName)
	return h
}
