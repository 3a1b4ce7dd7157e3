package peer

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
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

// PortOwner returns the program of this host that takes packets at a port, and whether there is
// one.
type PortOwner func(pando.HostPort) (owner string, taken bool)

// portTaken is the answer to a request for the owner of a port.
type portTaken struct {
	Owner string `json:"owner"`
	Taken bool   `json:"taken"`
}

// OwnHandler serves an agent to the commands of its own host, below /own/. Other requests go to
// next.
func OwnHandler(a Leaver, owner PortOwner, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET /own/taken", func(w http.ResponseWriter, r *http.Request) {
		port, err := strconv.ParseUint(r.FormValue("port"), 10, 16)
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: port: %w", pando.ErrInvalid, err))
			return
		}
		var t portTaken
		t.Owner, t.Taken = owner(pando.HostPort{Port: uint16(port),
			Protocol: pando.Protocol(r.FormValue("protocol"))})
		answer(w, t, nil)
	})
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

// Taken asks the agent of this host for the program that takes packets at a port.
func (c *Client) Taken(
	ctx context.Context, own pando.Host, p pando.HostPort,
) (owner string, taken bool, err error) {
	var t portTaken
	err = c.read(ctx, own, http.MethodGet, "/own/taken", url.Values{
		"port": {strconv.Itoa(int(p.Port))}, "protocol": {string(p.Protocol)}}, nil, &t)
	return t.Owner, t.Taken, err
}

// Leave asks the agent of this host to give the host up. It returns the number of instances left at
// the end.
func (c *Client) Leave(ctx context.Context, own pando.Host, drain time.Duration) (int, error) {
	var l left
	err := c.read(ctx, own, http.MethodPost, "/own/leave", url.Values{"drain": {drain.String()}}, nil,
		&l)
	return l.Left, err
}
