package peer

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"pando.run/pando"
)

// Leaver is an agent that can give up its host.
type Leaver interface {
	// Leave moves every instance away, within the time drain and the time for their stops. It
	// returns the number of instances left.
	Leave(ctx context.Context, drain time.Duration) (left int, err error)
}

// left is the answer to a request to leave.
type left struct {
	Left int `json:"left"`
}

// OwnHandler serves an agent to the commands of its own host, below /own/. Other requests go to
// next.
func OwnHandler(a Leaver, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("POST /own/leave", func(w http.ResponseWriter, r *http.Request) {
		drain, err := time.ParseDuration(r.FormValue("drain"))
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: drain: %w", pando.ErrInvalid, err))
			return
		}
		n, err := a.Leave(r.Context(), drain)
		answer(w, left{n}, err)
	})
	return mux
}

// Leave asks the agent of this host to give the host up. It returns the number of instances left at
// the end.
func (c *Client) Leave(ctx context.Context, own pando.Host, drain time.Duration) (int, error) {
	var l left
	err := c.read(ctx, own, http.MethodPost, "/own/leave", url.Values{"drain": {drain.String()}}, nil,
		&l)
	return l.Left, err
}
