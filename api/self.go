package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// stateBytesMax bounds one value of the state.
const stateBytesMax = 16 << 20

// heartbeat is how often a silent stream of events says that it is alive.
const heartbeat = 15 * time.Second

// self serves one instance.
type self struct {
	pando.Self
	id pando.InstanceID
}

// SelfHandler serves an instance on its own socket. The socket is the identity: there is no token, and no other instance
// can be named.
func SelfHandler(s pando.Self, i pando.InstanceID) http.Handler {
	h := self{s, i}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/self", h.describe)
	mux.HandleFunc("POST /v1/self/ready", h.ready)
	mux.HandleFunc("POST /v1/self/replicate", h.replicate)
	mux.HandleFunc("POST /v1/self/halt", h.halt)
	mux.HandleFunc("POST /v1/self/die", h.die)
	mux.HandleFunc("PUT /v1/self/metrics", h.metrics)
	mux.HandleFunc("GET /v1/self/events", h.events)
	mux.HandleFunc("POST /v1/self/state/commit", h.commit)
	mux.HandleFunc("POST /v1/self/state/pull", h.merge(s.StatePull))
	mux.HandleFunc("POST /v1/self/state/push", h.merge(s.StatePush))
	mux.HandleFunc("GET /v1/self/state/{path...}", h.get)
	mux.HandleFunc("PUT /v1/self/state/{path...}", h.write(s.StatePut))
	mux.HandleFunc("PATCH /v1/self/state/{path...}", h.write(s.StatePatch))
	mux.HandleFunc("DELETE /v1/self/state/{path...}", h.delete)
	return plainPaths(mux)
}

// plainPaths refuses what a router would tidy up: a path that is not what it says is an attempt at another one.
func plainPaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for part := range strings.SplitSeq(r.URL.Path, "/") {
			if part == ".." || part == "." {
				fail(w, fmt.Errorf("%w: the path %q has a part %q", pando.ErrInvalid, r.URL.Path, part), nil)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (h self) describe(w http.ResponseWriter, r *http.Request) {
	v, err := h.Describe(r.Context(), h.id)
	if err != nil {
		fail(w, err, nil)
		return
	}
	answer(w, http.StatusOK, v)
}

func (h self) ready(w http.ResponseWriter, r *http.Request) {
	if err := h.Ready(r.Context(), h.id); err != nil {
		fail(w, err, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// ask reads what the instance says of its request; ?wait=true is for those who send no body.
func ask(r *http.Request) (pando.Ask, error) {
	var a pando.Ask
	err := read(r, &a)
	a.Wait = a.Wait || r.URL.Query().Get("wait") == "true"
	return a, err
}

func (h self) replicate(w http.ResponseWriter, r *http.Request) {
	a, err := ask(r)
	if err != nil {
		fail(w, err, nil)
		return
	}
	i, err := h.Replicate(r.Context(), h.id, a)
	if err != nil {
		fail(w, err, &i)
		return
	}
	answer(w, http.StatusAccepted, i)
}

func (h self) halt(w http.ResponseWriter, r *http.Request) {
	a, err := ask(r)
	if err != nil {
		fail(w, err, nil)
		return
	}
	v, err := h.Halt(r.Context(), h.id, a)
	if err != nil {
		fail(w, err, &v.Intent)
		return
	}
	answer(w, http.StatusOK, v)
}

func (h self) die(w http.ResponseWriter, r *http.Request) {
	a, err := ask(r)
	if err != nil {
		fail(w, err, nil)
		return
	}
	i, err := h.Die(r.Context(), h.id, a)
	if err != nil {
		fail(w, err, nil)
		return
	}
	answer(w, http.StatusAccepted, i)
}

func (h self) metrics(w http.ResponseWriter, r *http.Request) {
	m := map[string]float64{}
	err := read(r, &m)
	if err == nil {
		err = h.PutMetrics(r.Context(), h.id, m)
	}
	if err != nil {
		fail(w, err, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// events streams server-sent events; Last-Event-ID resumes where a listener was cut off.
func (h self) events(w http.ResponseWriter, r *http.Request) {
	var after uint64
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		var err error
		if after, err = strconv.ParseUint(id, 10, 64); err != nil {
			fail(w, fmt.Errorf("%w: Last-Event-ID %q is not a number", pando.ErrInvalid, id), nil)
			return
		}
	}
	events, err := h.Events(r.Context(), h.id, after)
	if err != nil {
		fail(w, err, nil)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			b, err := json.Marshal(e)
			if err != nil {
				return
			}
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, b)
		case <-beat.C:
			fmt.Fprint(w, ": alive\n\n")
		}
		if flush.Flush() != nil {
			return
		}
	}
}

func (h self) commit(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Message string `json:"message"`
	}
	if err := read(r, &body); err != nil {
		fail(w, err, nil)
		return
	}
	id, err := h.StateCommit(r.Context(), h.id, body.Message)
	if err != nil {
		fail(w, err, nil)
		return
	}
	answer(w, http.StatusOK, map[string]pando.ObjectID{"commit": id})
}
