// Package pando lets a Go program that runs under Pando scale itself: ask for one more instance of itself, leave when
// it is not needed, and keep state that is merged with that of its fellows.
//
// It is a thin client of the unix socket in PANDO_SOCKET and uses nothing but the standard library. The socket is the
// identity: there is nothing to log in with, and no other instance can be asked about. It never decides anything.
package pando

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// What Pando may answer, for errors.Is. The text of an error says the reason.
var (
	ErrRefused  = errors.New("refused")                   // a budget or a rule says no
	ErrPending  = errors.New("a request is pending")      // one request of an instance may be outstanding
	ErrNotFound = errors.New("not found")                 // no such state path
	ErrInvalid  = errors.New("invalid")                   // the request itself is wrong
	ErrLost     = errors.New("lost")                      // what was written since the last commit: write it again, then commit
	ErrAway     = errors.New("the agent does not answer") // it is being restarted: try again
)

// Self is this instance as its host knows it. Its methods may be called from many goroutines.
type Self struct {
	http     *http.Client
	socket   string
	Instance string // its name, such as website-7k3q
	First    bool   // it was the service's first instance
}

// Open finds the socket that Pando gave to this program. The error says how to run it under Pando.
func Open() (*Self, error) {
	socket := os.Getenv("PANDO_SOCKET")
	if socket == "" {
		return nil, errors.New("PANDO_SOCKET is not set: this program was not started by Pando; start it with `pando deploy SPEC.yaml`")
	}
	return &Self{
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
			MaxIdleConnsPerHost: 4,
		}},
		socket: socket, Instance: os.Getenv("PANDO_INSTANCE"), First: os.Getenv("PANDO_ROLE") == "first",
	}, nil
}

// Ask says why something is asked for. Pando keeps it, and `pando why` shows it.
type Ask struct {
	Reason string             `json:"reason,omitempty"`
	Inputs map[string]float64 `json:"inputs,omitempty"` // what was measured, thresholds too
	Wait   bool               `json:"wait,omitempty"`   // replicate returns once the new instance takes flows
}

// Intent is something that was asked, and what became of it.
type Intent struct {
	ID       string `json:"id"`
	State    string `json:"state"` // granted, coalesced, placed, …, in rotation
	Reason   string `json:"reason"`
	Instance string `json:"instance"` // the one that is started, or that leaves
}

// View is what an instance sees of itself and of its service.
type View struct {
	Instance Instance           `json:"instance"`
	VIP      string             `json:"vip"`
	Scale    Scale              `json:"scale"`
	Peers    []Instance         `json:"peers"` // every instance that takes flows, itself included
	Pending  *Intent            `json:"pending"`
	Metrics  map[string]float64 `json:"metrics"`
	Flows    int                `json:"flows"` // open, of this instance
}

// Instance is one copy of the service.
type Instance struct {
	ID       string    `json:"id"`
	Host     string    `json:"host"`
	Revision int       `json:"revision"`
	Phase    string    `json:"phase"`
	Born     time.Time `json:"born"`
}

// Scale is the budget of the service.
type Scale struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Ready says that this instance can take traffic. Saying it again changes nothing.
func (s *Self) Ready(ctx context.Context) error { return s.call(ctx, "POST", "ready", nil, nil) }

// Replicate asks for one more instance. ErrRefused: the error's text names the budget. ErrPending: an earlier request
// of this instance has not been answered yet.
func (s *Self) Replicate(ctx context.Context, a Ask) (i Intent, err error) {
	return i, s.call(ctx, "POST", "replicate", a, &i)
}

// Halt takes this instance out of rotation: when it returns, no new flow comes. ErrRefused below the service's min.
// Flows that are open go on; the event Drained says that the last one has ended.
func (s *Self) Halt(ctx context.Context, a Ask) error { return s.call(ctx, "POST", "halt", a, nil) }

// Die gives the sandbox up. ErrRefused before Halt, with flows open, and until the state is pushed. After it returns,
// this program is ended.
func (s *Self) Die(ctx context.Context, a Ask) error { return s.call(ctx, "POST", "die", a, nil) }

// Me describes this instance and its service.
func (s *Self) Me(ctx context.Context) (v View, err error) {
	return v, s.call(ctx, "GET", "", nil, &v)
}

// PutMetrics replaces what this instance says of itself, for operators to see.
func (s *Self) PutMetrics(ctx context.Context, m map[string]float64) error {
	return s.call(ctx, "PUT", "metrics", m, nil)
}

// call sends v as JSON (or []byte as it is) and reads the answer into out.
func (s *Self) call(ctx context.Context, method, path string, v, out any) error {
	var body io.Reader
	switch v := v.(type) {
	case nil:
	case []byte:
		body = bytes.NewReader(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(text)
	}
	answer, err := s.send(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	switch out := out.(type) {
	case nil:
		_, err = io.Copy(io.Discard, answer)
	case *[]byte:
		*out, err = io.ReadAll(answer)
	default:
		err = json.NewDecoder(answer).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}

func (s *Self) send(ctx context.Context, method, path string, body io.Reader, header http.Header) (io.ReadCloser, error) {
	if path != "" {
		path = "/" + path
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://self/v1/self"+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	answer, err := s.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrAway, s.socket, err)
	}
	if answer.StatusCode < 400 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	return nil, problem(method+" "+path, answer)
}

// problem turns an answer (RFC 9457) into an error with its sentinel.
func problem(what string, answer *http.Response) error {
	var p struct{ Code, Detail string }
	if err := json.NewDecoder(answer.Body).Decode(&p); err != nil {
		return fmt.Errorf("%s: %s", what, answer.Status)
	}
	sentinel := map[string]error{
		"refused": ErrRefused, "conflict": ErrPending, "not_found": ErrNotFound, "invalid": ErrInvalid, "lost": ErrLost,
		"unavailable": ErrAway,
	}[p.Code]
	if sentinel == nil {
		return errors.New(p.Detail)
	}
	return answered{p.Detail, sentinel}
}

// answered keeps Pando's sentence and says which of the sentinels it is.
type answered struct {
	text     string
	sentinel error
}

func (a answered) Error() string { return a.text }
func (a answered) Unwrap() error { return a.sentinel }
