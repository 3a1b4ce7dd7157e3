package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/session"
)

// exec adds the operation that runs a command inside an instance.
func (h operators) exec(a huma.API) {
	op := operation(a, "exec", "POST /v1/services/{name}/exec",
		"Run a command inside an instance, with the rights of its program. The answer upgrades the "+
			"connection to the protocol pando-session: frames of a kind (1 byte: input 1, its end 2, "+
			"size of the terminal 3, signal 4, output 5, errors 6, exit 7), a length (4 bytes, big "+
			"endian) and content. The end of the connection ends the command.")
	op.Responses = map[string]*huma.Response{"101": {Description: "Switching Protocols"}}
	huma.Register(a, op, func(ctx context.Context, in *struct {
		Named
		Asking
		Upgrade  string           `header:"Upgrade" doc:"pando-session"`
		Instance pando.InstanceID `query:"instance" doc:"this instance, else the first that serves"`
		Body     pando.SessionSpec
	}) (*huma.StreamResponse, error) {
		if in.Upgrade != session.Protocol {
			return nil, problemOf(fmt.Errorf("%w: the request has no header Upgrade: %s",
				pando.ErrInvalid, session.Protocol), nil)
		}
		by, err := in.by(ctx)
		if err != nil {
			return nil, problemOf(err, nil)
		}
		command, err := h.operators.Exec(ctx, in.key(), in.Instance, in.Body, by)
		if command, err = entered(ctx, command, err); err != nil {
			return nil, problemOf(err, nil)
		}
		return &huma.StreamResponse{Body: func(c huma.Context) { relay(c, command) }}, nil
	})
}

// entered records the begin of a session in the audit. It ends a session without a record.
func entered(
	ctx context.Context, command io.ReadWriteCloser, err error,
) (io.ReadWriteCloser, error) {
	began := err == nil
	if err = settled(ctx, err); err != nil && began {
		command.Close()
	}
	return command, err
}

// relay takes over the connection of a request and relays its session to the end.
func relay(c huma.Context, command io.ReadWriteCloser) {
	w, ok := c.BodyWriter().(http.ResponseWriter)
	if !ok {
		command.Close()
		return
	}
	caller, err := session.Accept(w)
	if err != nil {
		command.Close()
		return
	}
	session.Relay(caller, command)
}

// Exec runs a command inside an instance ("": the first that serves). The connection carries the
// frames of api/session.
func (c *Client) Exec(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, spec pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	path, q := of(s, "/exec")
	q.Set("instance", string(i))
	return open(ctx, c, path, q, spec)
}

// open sends a request that becomes a session.
func open(
	ctx context.Context, c *Client, path string, q url.Values, spec pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pando"+path+"?"+q.Encode(),
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	session.Offer(r.Header)
	if c.Operator != "" {
		r.Header.Set(operatorHeader, c.Operator)
	}
	resp, err := c.do(r)
	if err != nil {
		return nil, c.notBegun(ctx, err)
	}
	if _, err := answered(resp); err != nil {
		return nil, err
	}
	return session.Begun(resp)
}

// notBegun explains why a session got no answer. It is never sent again: the command may run.
func (c *Client) notBegun(ctx context.Context, err error) error {
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("begin a session: %w", ctx.Err())
	case errors.As(err, new(lifeline.Silence)):
		return err
	case errors.As(err, &op) && op.Op == "dial":
		return c.unreachable(op)
	}
	return fmt.Errorf("%w: the connection to %s broke: %w", pando.ErrUnavailable, c.socket, err)
}
