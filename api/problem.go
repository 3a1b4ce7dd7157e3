// Package api contains the two HTTP contracts of Pando: operators' requests to the cluster (over
// access.Operators) and instances' requests to their host (over pando.Self). It also contains the
// client of the first.
//
// It never decides anything: a handler reads a request, calls the interface and writes the answer.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"pando.run/pando"
	"pando.run/pando/api/problem"
	"pando.run/pando/spec/nearest"
)

// Problem is an error on the wire (RFC 9457). Code is stable; Detail is for people.
type Problem struct {
	Title  string        `json:"title"`            // of the status
	Status int           `json:"status"`           //
	Code   string        `json:"code"`             // stable, for programs
	Detail string        `json:"detail"`           // the cause and the next step
	Intent *pando.Intent `json:"intent,omitempty"` // that was refused, or that is pending
}

// Error returns the detail. Error, GetStatus, GetHeaders and ContentType implement the error
// interface of the library that serves the operators' contract.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the status of the answer.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of RFC 9457.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders returns the headers of the answer. Retry-After is set if the caller may try again.
func (p *Problem) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusBadGateway {
		return http.Header{"Retry-After": {"1"}}
	}
	return nil
}

// problems is the table of errors, with the one error of this package.
var problems = append(slices.Clone(problem.Kinds),
	problem.Kind{Err: errMethod, Code: "method", Status: http.StatusMethodNotAllowed})

func problemOf(err error, intent *pando.Intent) *Problem {
	p := &Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: err.Error(),
		Intent: intent}
	for _, k := range problems {
		if errors.Is(err, k.Err) {
			p.Status, p.Code = k.Status, k.Code
			break
		}
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// err returns the problem as an error with its sentinel.
func (p Problem) err() error {
	if p.Code == "method" {
		return problem.Remote(p.Detail, errMethod)
	}
	return problem.Error(p.Code, p.Detail)
}

func fail(w http.ResponseWriter, err error, intent *pando.Intent) {
	p := problemOf(err, intent)
	w.Header().Set("Content-Type", "application/problem+json")
	maps.Copy(w.Header(), p.GetHeaders())
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the caller is gone
}

// answer writes a value with its length. Without the length, the server would write a long answer
// in pieces of 2 KiB, and would wake its reader for each.
func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fail(w, fmt.Errorf("encode an answer: %w", err), nil)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the caller is gone
}

// bodyBytesMax bounds every JSON body.
const bodyBytesMax = 1 << 20

// read decodes a JSON body strictly, if there is one. Its error names an unknown field.
func read(r *http.Request, v any) error {
	b, err := readBytes(r, bodyBytesMax)
	if err != nil || len(b) == 0 {
		return err
	}
	b = wholeNumbers(b)
	if err := checkNulls(b, v); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: the body: %w%s", pando.ErrInvalid, err, meantField(err, v))
	}
	if d.More() {
		return fmt.Errorf("%w: the body has text after its end at byte %d",
			pando.ErrInvalid, d.InputOffset())
	}
	return nil
}

// meantField suggests a field of v for one that it does not have.
func meantField(err error, v any) string {
	_, name, ok := strings.Cut(err.Error(), "unknown field ")
	t := reflect.TypeOf(v).Elem()
	if !ok || t.Kind() != reflect.Struct {
		return ""
	}
	var known []string
	for i := range t.NumField() {
		field, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known = append(known, field)
	}
	if best := nearest.Word(strings.Trim(name, `"`), known); best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ": known are " + strings.Join(known, ", ")
}

func readBytes(r *http.Request, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("%w: read the body: %w", pando.ErrInvalid, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("the body: %w: at most %d bytes", pando.ErrTooLarge, most)
	}
	return b, nil
}
