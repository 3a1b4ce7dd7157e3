package peer

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/api/problem"
)

// answered is the problem of RFC 9457, with the sentinel's code.
type answered struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code,omitempty"`
}

func writeProblem(w http.ResponseWriter, err error) {
	p := answered{Title: "failed", Status: http.StatusInternalServerError, Detail: err.Error()}
	if k, ok := problem.Of(err); ok {
		p.Title, p.Status, p.Code = k.Err.Error(), k.Status, problem.BetweenHosts(k.Code)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the asker may have gone
}

// Refuse answers a request with an error.
func Refuse(w http.ResponseWriter, err error) { writeProblem(w, err) }

func readProblem(resp *http.Response) error {
	var p answered
	b, err := io.ReadAll(io.LimitReader(resp.Body, problemBytes))
	if err != nil || json.Unmarshal(b, &p) != nil {
		if resp.StatusCode == http.StatusNotFound { // an earlier build has no such path
			return fmt.Errorf("%w: it answered %s", pando.ErrNotFound, resp.Status)
		}
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return problem.Error(p.Code, p.Detail)
}

// isTrust reports whether a server is not the expected one.
func isTrust(err error) bool {
	return errors.Is(err, pando.ErrForbidden) || errors.As(err, new(*tls.CertificateVerificationError))
}
