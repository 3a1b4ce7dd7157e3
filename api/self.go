package api

import (
	"fmt"
	"net/http"
	"strings"

	"pando.run/pando"
)

// stateBytesMax bounds one value of the state.
const stateBytesMax = 16 << 20

// self serves one instance.
type self struct {
	pando.Self
	id pando.InstanceID
}

// SelfHandler serves an instance on its own socket. The socket is the identity: there is no token,
// and no other instance can be named.
func SelfHandler(s pando.Self, i pando.InstanceID) http.Handler {
	mux := http.NewServeMux()
	for _, r := range (self{s, i}).routes() {
		mux.HandleFunc(r.pattern, r.do)
	}
	return known(mux)
}

// selfRoute is one request that an instance may make, with its line of the reference.
type selfRoute struct {
	pattern, summary, takes, answers string
	do                               http.HandlerFunc
}

// routes returns the contract with instances.
func (h self) routes() []selfRoute {
	const ask = `{"reason": "812 req/s > 600", "inputs": {"req/s": 812, "limit": 600}, ` +
		`"wait": false}, or nothing`
	return []selfRoute{
		{"GET /v1/self", "Describe the instance, its service's VIP and budget, and its peers.", "",
			"200 SelfView", h.describe},
		{"POST /v1/self/ready",
			"Report that the instance is ready for traffic. A repeated request has no effect.",
			"", "204", h.ready},
		{"POST /v1/self/replicate",
			"Ask for one more instance. `wait` (or ?wait=true) returns once it is in rotation or failed.",
			ask, "202 Intent; 409 refused with the budget, or conflict with the pending Intent",
			h.replicate},
		{"POST /v1/self/halt",
			"Take the instance out of rotation: no new flow reaches it from a host that acknowledged.",
			ask, "200 HaltResult; 409 refused below min", h.halt},
		{"POST /v1/self/die",
			"End the instance. Refused before halt, with open flows, and until the state is merged.",
			ask, "202 Intent; 409 refused", h.die},
		{"PUT /v1/self/metrics", "Report the load of the instance.", `{"queue": 12}`, "204", h.metrics},
		{"PUT /v1/self/leader",
			"Report that this ordinal leads in a term, or follows (0). The highest term has the name " +
				"leader.SERVICE.pando.",
			`{"term": 3}`, "204; 409 refused: the service is not stateful", h.lead},
		{"GET /v1/self/events",
			"Receive server-sent events: drained, halted, peers, budget, state, snapshot, restored. " +
				"Last-Event-ID resumes. Without it, the newest event of each kind that tells a state comes " +
				"first. drained comes again every 2 s until the instance dies; after 30 s the agent stops it.",
			"", "200 stream of SelfEvent", h.events},
		{"POST /v1/self/state/commit",
			"Make all writes so far durable, together with the atomic change in the body. The answer " +
				"comes after that.",
			`{"message": "…", "put": {"path": "value"}, "patch": {"path": "delta"}, ` +
				`"delete": ["path"]}, or nothing`, `200 {"commit": "…"}`, h.commit},
		{"POST /v1/self/state/pull", "Merge main into the instance's branch.", "", "200 MergeResult",
			h.merge(pando.Self.StatePull)},
		{"POST /v1/self/state/push",
			"Commit, then merge the branch into main. The answer comes when both are durable.",
			"", "200 MergeResult", h.merge(pando.Self.StatePush)},
		{"GET /v1/self/state/{path...}",
			"Read a value. An empty path, or one that ends in /, lists the entries below it.",
			"", "200 bytes, with the type in Pando-State-Type; or a list of StateEntry", h.get},
		{"PUT /v1/self/state/{path...}", "Write a value.", "bytes, at most 16 MiB", "204",
			h.write(pando.Self.StatePut)},
		{"PATCH /v1/self/state/{path...}",
			"Apply a delta: a number of at most 64 digits to add to a counter, lines to append to a log, " +
				"+member and -member lines to a set.",
			"bytes, at most 16 MiB", "204", h.write(pando.Self.StatePatch)},
		{"DELETE /v1/self/state/{path...}", "Delete a path.", "", "204", h.delete},
	}
}

// plainPaths refuses paths that a router would clean up, because such a path is an attempt to reach
// another one.
func plainPaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		for i, part := range parts {
			if part == ".." || part == "." || part == "" && i < len(parts)-1 {
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

// ask reads the reason and the inputs of a request. ?wait=true serves callers that send no body.
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

func (h self) lead(w http.ResponseWriter, r *http.Request) {
	var claim struct {
		Term *int64 `json:"term"`
	}
	err := read(r, &claim)
	if err == nil && (claim.Term == nil || *claim.Term < 0) {
		err = fmt.Errorf("%w: leader: want a term from 0 on, such as {\"term\": 3}", pando.ErrInvalid)
	}
	if err == nil {
		err = h.Lead(r.Context(), h.id, *claim.Term)
	}
	if err != nil {
		fail(w, err, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// events streams server-sent events. Last-Event-ID resumes after a broken connection.
func (h self) events(w http.ResponseWriter, r *http.Request) {
	after, err := eventID(r.Header.Get("Last-Event-ID"))
	if err != nil {
		fail(w, err, nil)
		return
	}
	events, err := h.Events(r.Context(), h.id, after)
	if err != nil {
		fail(w, err, nil)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	to := newSender(w)
	if to.send(nil) {
		pass(to, events, func(e pando.SelfEvent) []byte {
			return event(fmt.Appendf(nil, "id: %d\n", e.ID),
				string(e.Kind), e)
		})
	}
}

func (h self) commit(w http.ResponseWriter, r *http.Request) {
	var c pando.StateChange
	if err := read(r, &c); err != nil {
		fail(w, err, nil)
		return
	}
	id, err := h.StateCommit(r.Context(), h.id, c)
	if err != nil {
		fail(w, err, nil)
		return
	}
	answer(w, http.StatusOK, map[string]pando.ObjectID{"commit": id})
}
