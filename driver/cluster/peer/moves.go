package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"pando.run/pando"
)

// MovesPath is the path of the requests about moves that only the server may make, and CarryPath
// begins those between the two hosts of a move.
const (
	MovesPath = "/peer/moves"
	CarryPath = "/peer/carry"
)

// mover is the part of a client for moves.
type mover struct{ c *Client }

func ofMove(id string) url.Values { return url.Values{"move": {id}} }

// Expect announces a move to its new host.
func (c mover) Expect(ctx context.Context, h pando.Host, m pando.Move) error {
	var done struct{}
	return c.send(ctx, h, http.MethodPut, MovesPath, nil, m, &done)
}

// Depart sends an instance of a host to another one.
func (c mover) Depart(
	ctx context.Context, h pando.Host, m pando.Move,
) (out pando.Arrival, err error) {
	return out, c.send(ctx, h, http.MethodPost, MovesPath, nil, m, &out)
}

// Landed waits until the program of a move runs.
func (c mover) Landed(
	ctx context.Context, h pando.Host, id string,
) (out pando.MoveStatus, err error) {
	return out, c.c.get(ctx, h, MovesPath, ofMove(id), &out)
}

// Carry sends the program of a move to its new host.
func (c mover) Carry(
	ctx context.Context, h pando.Host, id string, program io.Reader,
) (out pando.Arrival, err error) {
	return out, c.c.read(ctx, h, http.MethodPost, CarryPath, ofMove(id), program, &out)
}

// Hand sends packets to the program of a move.
func (c mover) Hand(ctx context.Context, h pando.Host, id string, packets [][]byte) error {
	var done struct{}
	return c.send(ctx, h, http.MethodPut, CarryPath, ofMove(id), packets, &done)
}

// GiveUp ends a move on its new host.
func (c mover) GiveUp(ctx context.Context, h pando.Host, id string) error {
	var done struct{}
	return c.c.read(ctx, h, http.MethodDelete, CarryPath, ofMove(id), nil, &done)
}

// Moving reports whether a move from a host is in progress.
func (c mover) Moving(
	ctx context.Context, h pando.Host, id string,
) (is bool, err error) {
	return is, c.c.get(ctx, h, CarryPath, ofMove(id), &is)
}

func (c mover) send(ctx context.Context, h pando.Host, method, path string, q url.Values,
	ask, into any) error {
	b, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	return c.c.read(ctx, h, method, path, q, bytes.NewReader(b), into)
}

// Bounds of the bodies of requests about moves. A spec and all packets fit.
const (
	moveBytesMax = 4 << 20
	handBytesMax = 4 * pando.PacketBytesMax
)

func readBody(r *http.Request, most int64, into any) error {
	err := json.NewDecoder(io.LimitReader(r.Body, most)).Decode(into)
	if err != nil {
		return fmt.Errorf("%w: read a request about a move: %w", pando.ErrInvalid, err)
	}
	return nil
}

// moveRoutes serves moves from and to a host.
func moveRoutes(mux *http.ServeMux, a pando.HostAgent) {
	mux.HandleFunc("PUT "+MovesPath, func(w http.ResponseWriter, r *http.Request) {
		var m pando.Move
		err := readBody(r, moveBytesMax, &m)
		if err == nil {
			err = a.Expect(r.Context(), m)
		}
		answer(w, struct{}{}, err)
	})
	mux.HandleFunc("POST "+MovesPath, func(w http.ResponseWriter, r *http.Request) {
		var m pando.Move
		var out pando.Arrival
		err := readBody(r, moveBytesMax, &m)
		if err == nil {
			out, err = a.Depart(r.Context(), m)
		}
		answer(w, out, err)
	})
	mux.HandleFunc("GET "+MovesPath, func(w http.ResponseWriter, r *http.Request) {
		out, err := a.Landed(r.Context(), r.FormValue("move"))
		answer(w, out, err)
	})
	mux.HandleFunc("POST "+CarryPath, func(w http.ResponseWriter, r *http.Request) {
		out, err := a.Carry(r.Context(), Asker(r.Context()), r.URL.Query().Get("move"),
			endable{r.Body, http.NewResponseController(w)})
		answer(w, out, err)
	})
	mux.HandleFunc("PUT "+CarryPath, func(w http.ResponseWriter, r *http.Request) {
		var packets [][]byte
		err := readBody(r, handBytesMax, &packets)
		if err == nil {
			err = a.Hand(r.Context(), Asker(r.Context()), r.URL.Query().Get("move"), packets)
		}
		answer(w, struct{}{}, err)
	})
	mux.HandleFunc("DELETE "+CarryPath, func(w http.ResponseWriter, r *http.Request) {
		answer(w, struct{}{}, a.GiveUp(r.Context(), r.FormValue("move")))
	})
	mux.HandleFunc("GET "+CarryPath, func(w http.ResponseWriter, r *http.Request) {
		is, err := a.Moving(r.Context(), r.FormValue("move"))
		answer(w, is, err)
	})
}

// endable is the body of a request. Close also ends a read that waits for the other host, as Close
// of the body does not.
type endable struct {
	io.Reader
	c *http.ResponseController
}

func (e endable) Close() error { return e.c.SetReadDeadline(time.Unix(1, 0)) }
