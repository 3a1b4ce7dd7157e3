package api

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"pando.run/pando"
)

// Pinned is the body that fixes a number of instances.
type Pinned struct {
	Instances  int     `json:"instances"`
	ForSeconds float64 `json:"for_seconds,omitempty"` // 0: until it is lifted
}

// operators serves pando.Operators.
type operators struct{ pando.Operators }

// OperatorsHandler serves the operators' API. Who may reach its socket may use it.
func OperatorsHandler(ops pando.Operators) http.Handler {
	h := operators{ops}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", h.list)
	mux.HandleFunc("POST /v1/services", h.deploy)
	mux.HandleFunc("GET /v1/services/{name}", h.show)
	mux.HandleFunc("DELETE /v1/services/{name}", h.remove)
	mux.HandleFunc("POST /v1/services/{name}/pin", h.pin)
	mux.HandleFunc("DELETE /v1/services/{name}/pin", h.unpin)
	mux.HandleFunc("GET /v1/services/{name}/why", h.why)
	mux.HandleFunc("GET /v1/services/{name}/logs", h.logs)
	mux.HandleFunc("GET /v1/services/{name}/counters", h.counters)
	mux.HandleFunc("GET /v1/services/{name}/state", h.stateLog)
	mux.HandleFunc("GET /v1/hosts", h.hosts)
	mux.Handle("/state/", ops.State())
	return mux
}

// service is whom a request is about: the path's name, and the query's tenant.
func service(r *http.Request) pando.ServiceKey {
	k := pando.DefaultService(pando.ServiceName(r.PathValue("name")))
	if t := r.URL.Query().Get("tenant"); t != "" {
		k.Tenant = pando.Tenant(t)
	}
	return k
}

// operator is who asks. The socket's users are one for now; a name may be given for the record.
func operator(r *http.Request) pando.Asker {
	return pando.Asker{Kind: pando.AskerOperator, Name: r.Header.Get("Pando-Operator")}
}

// number reads a query's number; absent is zero.
func number(r *http.Request, name string) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %s=%s is not a number", pando.ErrInvalid, name, text)
	}
	return n, nil
}

// reply writes what a call returned.
func reply[T any](w http.ResponseWriter, v T, err error) {
	if err != nil {
		fail(w, err, nil)
		return
	}
	answer(w, http.StatusOK, v)
}

func (h operators) list(w http.ResponseWriter, r *http.Request) {
	v, err := h.Services(r.Context())
	reply(w, v, err)
}

func (h operators) deploy(w http.ResponseWriter, r *http.Request) {
	var s pando.Spec
	if err := read(r, &s); err != nil {
		fail(w, err, nil)
		return
	}
	v, err := h.Deploy(r.Context(), s, operator(r))
	reply(w, v, err)
}

func (h operators) show(w http.ResponseWriter, r *http.Request) {
	v, err := h.Service(r.Context(), service(r))
	if err == nil {
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, v.Seen))
	}
	reply(w, v, err)
}

func (h operators) remove(w http.ResponseWriter, r *http.Request) {
	if err := h.Remove(r.Context(), service(r), r.URL.Query().Get("purge") == "true", operator(r)); err != nil {
		fail(w, err, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (h operators) pin(w http.ResponseWriter, r *http.Request) {
	var p Pinned
	if err := read(r, &p); err != nil {
		fail(w, err, nil)
		return
	}
	v, err := h.Pin(r.Context(), service(r), p.Instances, time.Duration(p.ForSeconds*float64(time.Second)), operator(r))
	reply(w, v, err)
}

func (h operators) unpin(w http.ResponseWriter, r *http.Request) {
	v, err := h.Unpin(r.Context(), service(r), operator(r))
	reply(w, v, err)
}

func (h operators) why(w http.ResponseWriter, r *http.Request) {
	most, err := number(r, "max")
	if err != nil {
		fail(w, err, nil)
		return
	}
	v, err := h.Why(r.Context(), service(r), most)
	reply(w, v, err)
}

func (h operators) logs(w http.ResponseWriter, r *http.Request) {
	lines, err := number(r, "lines")
	if err != nil {
		fail(w, err, nil)
		return
	}
	q := r.URL.Query()
	log, err := h.Logs(r.Context(), service(r), pando.InstanceID(q.Get("instance")), lines, q.Get("follow") == "true")
	if err != nil {
		fail(w, err, nil)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	b := make([]byte, 32<<10)
	for {
		n, err := log.Read(b)
		if n > 0 {
			if _, werr := w.Write(b[:n]); werr != nil {
				return
			}
			_ = flush.Flush()
		}
		if err != nil {
			return // io.EOF, or the log is gone: what was read has been sent
		}
	}
}

func (h operators) counters(w http.ResponseWriter, r *http.Request) {
	v, err := h.Counters(r.Context(), service(r))
	reply(w, v, err)
}

func (h operators) stateLog(w http.ResponseWriter, r *http.Request) {
	most, err := number(r, "max")
	if err != nil {
		fail(w, err, nil)
		return
	}
	if most == 0 {
		most = 20
	}
	v, err := h.StateLog(r.Context(), service(r), most)
	reply(w, v, err)
}

func (h operators) hosts(w http.ResponseWriter, r *http.Request) {
	v, err := h.Hosts(r.Context())
	reply(w, v, err)
}
