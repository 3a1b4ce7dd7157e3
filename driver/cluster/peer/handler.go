package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api/logs"
)

// applied is the answer of a host that steers by the newest records.
type applied struct {
	Missing string `json:"missing,omitempty"` // what its tables leave out
}

// Handler serves an agent to its peers, below /peer/.
func Handler(a pando.HostAgent) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /peer/applied", func(w http.ResponseWriter, r *http.Request) {
		of, err := services(r)
		at, err2 := number(r, "at")
		if err == nil {
			err = err2
		}
		var is applied
		if err == nil {
			is.Missing, err = a.Applied(r.Context(), of, pando.StoreRevision(at))
		}
		answer(w, is, err)
	})
	mux.HandleFunc("GET /peer/counters", func(w http.ResponseWriter, r *http.Request) {
		c, err := a.Counters(r.Context())
		answer(w, c, err)
	})
	mux.HandleFunc("GET /peer/losses", func(w http.ResponseWriter, r *http.Request) {
		l, err := a.Losses(r.Context())
		answer(w, l, err)
	})
	mux.HandleFunc("POST "+ExecPath, func(w http.ResponseWriter, r *http.Request) { exec(a, w, r) })
	mux.HandleFunc("GET /peer/usage", func(w http.ResponseWriter, r *http.Request) {
		var s pando.ServiceKey
		var err error
		if r.FormValue("service") != "" {
			s, err = service(r)
		}
		var all []pando.InstanceUsage
		if err == nil {
			all, err = a.Usage(r.Context(), s)
		}
		answer(w, all, err)
	})
	workRoute(mux, a)
	volumeRoutes(mux, a)
	snapshotRoutes(mux, a)
	moveRoutes(mux, a)
	mux.HandleFunc("GET /peer/meters", func(w http.ResponseWriter, r *http.Request) {
		sendMeters(a, w, r)
	})
	mux.HandleFunc("GET /peer/statelog", func(w http.ResponseWriter, r *http.Request) {
		s, err := service(r)
		most, err2 := number(r, "max")
		if err == nil {
			err = err2
		}
		var log []pando.StateCommit
		if err == nil {
			log, err = a.StateLog(r.Context(), s, int(most))
		}
		answer(w, log, err)
	})
	mux.HandleFunc("GET "+LogsPath, func(w http.ResponseWriter, r *http.Request) {
		sendLogs(a, w, r)
	})
	mux.Handle("/peer/state/", http.StripPrefix("/peer/state", a.State()))
	return mux
}

// ObjectsHandler adds the states of the host to the handler of its agent: one file with a
// consistent copy. write writes it.
func ObjectsHandler(h http.Handler, write func(io.Writer) error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET /peer/objects", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Trailer", wholeTrailer)
		if write(w) == nil {
			w.Header().Set(wholeTrailer, "true")
		}
	})
	return mux
}

// wholeTrailer marks the end of a copy that is whole.
const wholeTrailer = "Pando-Whole"

// LogsPath is the path of the logs of instances. Only the server may ask for it: it knows who asks.
const LogsPath = "/peer/logs"

// sendLogs sends lines of logs as they come, until they or the request end.
func sendLogs(a pando.HostAgent, w http.ResponseWriter, r *http.Request) {
	lines, err := openLogs(a, r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer lines.Close()
	// A read that waits for the next line ends with the request.
	defer context.AfterFunc(r.Context(), func() { lines.Close() })()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := http.NewResponseController(w)
	_ = out.Flush() // the asker receives the start of the stream
	follow := r.FormValue("follow") == "true"
	var b []byte
	for {
		l, err := lines.Next()
		if err != nil {
			return
		}
		b = logs.Encode(b[:0], l)
		if _, err := w.Write(b); err != nil || follow && out.Flush() != nil {
			return
		}
	}
}

func openLogs(a pando.HostAgent, r *http.Request) (pando.LogLines, error) {
	if err := r.ParseForm(); err != nil {
		return nil, fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	}
	s, err := service(r)
	if err != nil {
		return nil, err
	}
	lines, err := number(r, "lines")
	if err != nil {
		return nil, err
	}
	since, err := number(r, "since")
	if err != nil {
		return nil, err
	}
	q := pando.LogQuery{
		Lines: int(lines), Follow: r.FormValue("follow") == "true", Match: r.FormValue("match"),
	}
	if since != 0 {
		q.Since = time.Unix(0, since)
	}
	var all []pando.InstanceID
	for _, i := range r.Form["instance"] {
		all = append(all, pando.InstanceID(i))
	}
	ctx := r.Context()
	if r.FormValue("operator") != "true" { // the agent counts unread lines by tenant
		ctx = access.WithToken(ctx, access.Token{TokenKey: access.TokenKey{Tenant: s.Tenant}})
	}
	return a.Logs(ctx, s, all, q)
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the asker may have gone
}

func service(r *http.Request) (pando.ServiceKey, error) {
	return pando.ParseServiceKey(r.FormValue("tenant") + "/" + r.FormValue("service"))
}

// services returns the services of a request: the one of its own words, and those beside it.
func services(r *http.Request) ([]pando.ServiceKey, error) {
	s, err := service(r)
	all := []pando.ServiceKey{s}
	for _, text := range r.Form["also"] {
		if err == nil {
			s, err = pando.ParseServiceKey(text)
			all = append(all, s)
		}
	}
	return all, err
}

func number(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(r.FormValue(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s %q is no number", pando.ErrInvalid, name, r.FormValue(name))
	}
	return n, nil
}
