package peer

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"pando.run/pando"
)

// kinds are the sentinels of the root with their code and status on the wire.
var kinds = []struct {
	code   string
	err    error
	status int
}{
	{"invalid", pando.ErrInvalid, http.StatusBadRequest},
	{"not-found", pando.ErrNotFound, http.StatusNotFound},
	{"exists", pando.ErrExists, http.StatusConflict},
	{"conflict", pando.ErrConflict, http.StatusConflict},
	{"refused", pando.ErrRefused, http.StatusUnprocessableEntity},
	{"forbidden", pando.ErrForbidden, http.StatusForbidden},
	{"too-large", pando.ErrTooLarge, http.StatusRequestEntityTooLarge},
	{"lost", pando.ErrLost, http.StatusConflict},
	{"fenced", pando.ErrFenced, http.StatusConflict},
	{"store-full", pando.ErrStoreFull, http.StatusInsufficientStorage},
	{"unavailable", pando.ErrUnavailable, http.StatusServiceUnavailable},
	{"compacted", pando.ErrCompacted, http.StatusGone},
	{"no-room", pando.ErrNoRoom, http.StatusServiceUnavailable},
	{"not-ready", pando.ErrNotReady, http.StatusGatewayTimeout},
	{"unsupported", pando.ErrUnsupported, http.StatusNotImplemented},
	{"frozen", pando.ErrFrozen, http.StatusConflict},
}

// problem is the problem of RFC 9457, with the sentinel's code.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code,omitempty"`
}

// remote is an error of another host: its text and its sentinel.
type remote struct {
	detail string
	kind   error
}

func (e remote) Error() string { return e.detail }
func (e remote) Unwrap() error { return e.kind }

func writeProblem(w http.ResponseWriter, err error) {
	p := problem{Title: "failed", Status: http.StatusInternalServerError, Detail: err.Error()}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			p.Title, p.Status, p.Code = k.err.Error(), k.status, k.code
			break
		}
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the asker may have gone
}

// Refuse answers a request with an error.
func Refuse(w http.ResponseWriter, err error) { writeProblem(w, err) }

func readProblem(resp *http.Response) error {
	var p problem
	b, err := io.ReadAll(io.LimitReader(resp.Body, problemBytes))
	if err != nil || json.Unmarshal(b, &p) != nil {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	for _, k := range kinds {
		if p.Code == k.code {
			return remote{detail: p.Detail, kind: k.err}
		}
	}
	return errors.New(p.Detail)
}

// isTrust reports whether a server is not the expected one.
func isTrust(err error) bool {
	return errors.Is(err, pando.ErrForbidden) || errors.As(err, new(*tls.CertificateVerificationError))
}
