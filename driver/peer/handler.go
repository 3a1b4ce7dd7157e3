package peer

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"pando.run/pando"
)

// Handler serves an agent to its peers, below /peer/.
func Handler(a pando.HostAgent) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /peer/applied", func(w http.ResponseWriter, r *http.Request) {
		s, err := service(r)
		at, err2 := number(r, "at")
		if err == nil {
			err = err2
		}
		if err == nil {
			err = a.Applied(r.Context(), s, pando.StoreRevision(at))
		}
		answer(w, struct{}{}, err)
	})
	mux.HandleFunc("GET /peer/counters", func(w http.ResponseWriter, r *http.Request) {
		c, err := a.Counters(r.Context())
		answer(w, c, err)
	})
	mux.HandleFunc("GET /peer/losses", func(w http.ResponseWriter, r *http.Request) {
		l, err := a.Losses(r.Context())
		answer(w, l, err)
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
	mux.HandleFunc("GET /peer/logs", func(w http.ResponseWriter, r *http.Request) { logs(a, w, r) })
	mux.Handle("/peer/state/", http.StripPrefix("/peer/state", a.State()))
	return mux
}

// logs copies log lines at once, until the log or the request ends.
func logs(a pando.HostAgent, w http.ResponseWriter, r *http.Request) {
	lines, err := number(r, "lines")
	var log io.ReadCloser
	if err == nil {
		log, err = a.Logs(r.Context(), pando.InstanceID(r.FormValue("instance")), int(lines),
			r.FormValue("follow") == "true")
	}
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := http.NewResponseController(w)
	// The asker receives the start of the stream. A read that waits for the next line ends with the
	// request.
	_ = out.Flush()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-r.Context().Done():
			log.Close()
		case <-done:
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := log.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil || out.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
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

func number(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(r.FormValue(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s %q is no number", pando.ErrInvalid, name, r.FormValue(name))
	}
	return n, nil
}
