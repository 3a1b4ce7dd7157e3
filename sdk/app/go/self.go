// Package pando lets a Go program that runs under Pando scale itself. It can ask for one more
// instance, leave when load falls, and keep state that is merged with its peers' state.
//
// It is a thin client of the unix socket in PANDO_SOCKET and uses only the standard library. The
// socket is the identity: there is no login, and an instance can ask only about itself. It never
// decides anything.
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

// The errors of Pando, for errors.Is. The text of an error is the reason.
var (
	ErrRefused  = errors.New("refused")                   // a budget or a rule refuses
	ErrPending  = errors.New("a request is pending")      // an instance may have one open request
	ErrNotFound = errors.New("not found")                 // no such state path
	ErrInvalid  = errors.New("invalid")                   // the request is invalid
	ErrLost     = errors.New("lost")                      // writes were lost: repeat them, then commit
	ErrAway     = errors.New("the agent does not answer") // it is restarting: try again
)

// Self is the client of this instance. Its methods may be called from many goroutines.
type Self struct {
	http     *http.Client
	socket   string
	Instance string // its name, for example website-7k3q
	First    bool   // whether it was the service's first instance
}

// Open returns the client of the socket in PANDO_SOCKET. Its error explains how to run the program
// under Pando.
func Open() (*Self, error) {
	socket := os.Getenv("PANDO_SOCKET")
	if socket == "" {
		return nil, errors.New("PANDO_SOCKET is not set: this program was not started by Pando; start " +
			"it with `pando deploy SPEC.yaml`")
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

// Ask is the reason for a request. Pando stores it, and `pando why` shows it.
type Ask struct {
	Reason string             `json:"reason,omitempty"`
	Inputs map[string]float64 `json:"inputs,omitempty"` // measured values and thresholds
	Wait   bool               `json:"wait,omitempty"`   // return once the new instance takes flows
}

// Intent is a request and its outcome.
type Intent struct {
	ID       string `json:"id"`
	State    string `json:"state"` // granted, coalesced, placed, …, in rotation
	Reason   string `json:"reason"`
	Instance string `json:"instance"` // the instance that starts or leaves
}

// View is the state of an instance and of its service.
type View struct {
	Instance Instance `json:"instance"`
	VIP      string   `json:"vip"`
	Scale    Scale    `json:"scale"`
	// Peers are instances that take flows: the 32 youngest, and this one.
	Peers      []Instance         `json:"peers"`
	InRotation int                `json:"in_rotation"` // all instances that take flows
	Pending    *Intent            `json:"pending"`
	Metrics    map[string]float64 `json:"metrics"`
	Flows      int                `json:"flows"` // open flows of this instance
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

// Ready reports that this instance can take traffic. Repeated calls change nothing.
func (s *Self) Ready(ctx context.Context) error { return s.call(ctx, "POST", "ready", nil, nil) }

// Replicate asks for one more instance. With ErrRefused, the error's text names the budget.
// ErrPending means that an earlier request of this instance is still open.
func (s *Self) Replicate(ctx context.Context, a Ask) (i Intent, err error) {
	return i, s.call(ctx, "POST", "replicate", a, &i)
}

// Halt takes this instance out of rotation. Once it returns, the instance gets no new flows. It
// fails with ErrRefused below the service's min. Open flows continue; the event Drained reports the
// end of the last one.
func (s *Self) Halt(ctx context.Context, a Ask) error { return s.call(ctx, "POST", "halt", a, nil) }

// Die gives up the sandbox. It fails with ErrRefused before Halt, with flows open, and until the
// state is pushed. Once it returns, Pando ends this program.
func (s *Self) Die(ctx context.Context, a Ask) error { return s.call(ctx, "POST", "die", a, nil) }

// Me returns the view of this instance and its service.
func (s *Self) Me(ctx context.Context) (v View, err error) {
	return v, s.call(ctx, "GET", "", nil, &v)
}

// PutMetrics replaces the metrics that this instance shows to operators.
func (s *Self) PutMetrics(ctx context.Context, m map[string]float64) error {
	return s.call(ctx, "PUT", "metrics", m, nil)
}

// call sends v as JSON, or a []byte unchanged, and reads the answer into out.
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

func (s *Self) send(
	ctx context.Context, method, path string, body io.Reader, header http.Header,
) (io.ReadCloser, error) {
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
		"refused": ErrRefused, "conflict": ErrPending, "not_found": ErrNotFound, "invalid": ErrInvalid,
		"lost":        ErrLost,
		"unavailable": ErrAway, "unreachable": ErrAway, "busy": ErrAway,
	}[p.Code]
	if sentinel == nil {
		return errors.New(p.Detail)
	}
	return answered{p.Detail, sentinel}
}

// answered is an error with Pando's text and one of the sentinels.
type answered struct {
	text     string
	sentinel error
}

func (a answered) Error() string { return a.text }
func (a answered) Unwrap() error { return a.sentinel }
