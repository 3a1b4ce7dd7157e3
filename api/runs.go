package api

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/api/session"
)

// runs serves pando.RunOperators.
type runs struct{ pando.RunOperators }

// routes adds the operations on the runs of a service. The service itself lists them in its book.
func (h runs) routes(a huma.API) {
	const path = "/v1/services/{name}/runs"
	route(a, "start-run", "POST "+path, "Start a run of a job, or of a command with the spec of a "+
		"service: beside its instances, and never in rotation.", h.start)
	route(a, "end-run", "DELETE "+path+"/{number}", "End a run in progress. 0 is the newest.", h.end)
	op := operation(a, "attach-run", "POST "+path+"/attach",
		"Start a run with one instance and run a command in it. The answer upgrades the connection to "+
			"the protocol pando-session, as exec does. The end of the connection ends the run.")
	op.Responses = map[string]*huma.Response{"101": {Description: "Switching Protocols"}}
	huma.Register(a, op, h.attach)
	// The first word names a program, and the others may be empty. No tag of a field says that.
	command := a.OpenAPI().Components.Schemas.Map()["RunAsk"].Properties["command"]
	command.Extensions = map[string]any{"prefixItems": []*huma.Schema{{Type: huma.TypeString, MinLength: new(1)}}}
}

// ranOnce is an answer about one run.
type ranOnce struct{ Body pando.Run }

func (h runs) start(ctx context.Context, in *struct {
	Named
	Asking
	Body pando.RunAsk
}) (*ranOnce, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	r, err := h.StartRun(ctx, in.key(), in.Body, by)
	return &ranOnce{r}, err
}

func (h runs) end(ctx context.Context, in *struct {
	Named
	Asking
	Number int `path:"number" minimum:"0" doc:"number of the run, or 0 for the newest"`
}) (*ranOnce, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	r, err := h.EndRun(ctx, in.key(), in.Number, by)
	return &ranOnce{r}, err
}

func (h runs) attach(ctx context.Context, in *struct {
	Named
	Asking
	Upgrade string `header:"Upgrade" doc:"pando-session"`
	Body    pando.SessionSpec
}) (*huma.StreamResponse, error) {
	if in.Upgrade != session.Protocol {
		return nil, problemOf(fmt.Errorf("%w: the request has no header Upgrade: %s",
			pando.ErrInvalid, session.Protocol), nil)
	}
	by, err := in.by(ctx)
	if err != nil {
		return nil, problemOf(err, nil)
	}
	command, err := h.AttachRun(ctx, in.key(), in.Body, by)
	if command, err = entered(ctx, command, err); err != nil {
		return nil, problemOf(err, nil)
	}
	return &huma.StreamResponse{Body: func(c huma.Context) { relay(c, command) }}, nil
}

// RunClient is the part of a Client for the runs of services.
type RunClient struct{ c *Client }

// Runs returns the part of a client for the runs of services.
func Runs(c *Client) RunClient { return RunClient{c} }

// Start starts a run of a service and returns at once.
func (r RunClient) Start(
	ctx context.Context, s pando.ServiceKey, ask pando.RunAsk,
) (pando.Run, error) {
	path, q := of(s, "/runs")
	return call[pando.Run](ctx, r.c, http.MethodPost, path, q, ask)
}

// End ends a run in progress. number 0 is the newest.
func (r RunClient) End(ctx context.Context, s pando.ServiceKey, number int) (pando.Run, error) {
	path, q := of(s, fmt.Sprint("/runs/", number))
	return call[pando.Run](ctx, r.c, http.MethodDelete, path, q, nil)
}

// Attach starts a run with one instance and runs a command in it. The connection carries the
// frames of api/session.
func (r RunClient) Attach(
	ctx context.Context, s pando.ServiceKey, command pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	path, q := of(s, "/runs/attach")
	return open(ctx, r.c, path, q, command)
}
