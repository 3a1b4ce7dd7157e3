package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// vipsPath is the path of takes of VIPs.
const vipsPath = "/peer/vips"

// vipTakeBytesMax bounds a take, which has no list.
const vipTakeBytesMax = 64 << 10

var _ edge.VIPPeers = (*Client)(nil)

// TakeVIPs asks a host to leave VIPs to this one, and for the flows of its instances.
func (c *Client) TakeVIPs(
	ctx context.Context, h pando.Host, t edge.VIPTake,
) (g edge.VIPGrant, err error) {
	ask, err := json.Marshal(t)
	if err != nil {
		return g, err
	}
	return g, c.read(ctx, h, http.MethodPost, vipsPath, nil, bytes.NewReader(ask), &g)
}

// VIPHandler adds takes of VIPs to the handler of an agent. Only a member takes, in its own name.
func VIPHandler(next http.Handler, a edge.VIPHolder) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("POST "+vipsPath, func(w http.ResponseWriter, r *http.Request) {
		var t edge.VIPTake
		err := json.NewDecoder(io.LimitReader(r.Body, vipTakeBytesMax)).Decode(&t)
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: a take of VIPs: %w", pando.ErrInvalid, err))
			return
		}
		if t.Host = Asker(r.Context()); t.Host == "" {
			writeProblem(w, fmt.Errorf("%w: only a host of the cluster takes VIPs", pando.ErrForbidden))
			return
		}
		g, err := a.GrantVIPs(r.Context(), t)
		answer(w, g, err)
	})
	return mux
}
