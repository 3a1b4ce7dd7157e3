package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"

	"pando.run/pando"
)

// askBytesMax bounds the body of an ask. An instance's reason and inputs are far smaller.
const askBytesMax = 1 << 20

// ask is an agent's request to control.
type ask struct {
	By     pando.Fence  `json:"by"`
	Intent pando.Intent `json:"intent"`
}

// ControlHandler serves a control to agents, below /control/.
func ControlHandler(d pando.Decider) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /control/answer", func(w http.ResponseWriter, r *http.Request) {
		var q ask
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, askBytesMax)).Decode(&q); err != nil {
			writeProblem(w, fmt.Errorf("%w: read an ask: %w", pando.ErrInvalid, err))
			return
		}
		records, err := d.Answer(r.Context(), q.By, q.Intent, func() {})
		answer(w, records, err)
	})
	return mux
}

var _ pando.Decider = Control{}

// Control reaches the control of a server at an endpoint as in a host's record.
type Control struct {
	Client *Client
	Server pando.Host
}

// Answer implements pando.Decider.
func (c Control) Answer(
	ctx context.Context, by pando.Fence, i pando.Intent, sent func(),
) (out []pando.Record, err error) {
	b, err := json.Marshal(ask{by, i})
	if err != nil {
		return nil, fmt.Errorf("ask control: %w", err)
	}
	once := sync.OnceFunc(sent) // the request may be sent twice
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(w httptrace.WroteRequestInfo) {
			if w.Err == nil {
				once()
			}
		}})
	return out, c.Client.readBy(ctx, c.Client.direct, c.Server, http.MethodPost, "/control/answer",
		nil, bytes.NewReader(b), &out)
}
