package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
)

// rollouts serves pando.Rollouts.
type rollouts struct{ pando.Rollouts }

// routes adds the operations on the rollout of a service.
func (h rollouts) routes(a huma.API) {
	const path = " /v1/services/{name}/rollout"
	route(a, "show-rollout", "GET"+path,
		"Show the rollout in progress with its next step, and the end of the newest one.", h.show)
	route(a, "pause-rollout", "POST"+path+"/pause",
		"Pause the rollout in progress. Failures of the new revision still end it.", h.pause)
	route(a, "resume-rollout", "DELETE"+path+"/pause", "Continue a paused rollout.", h.resume)
	route(a, "finish-rollout", "POST"+path+"/finish",
		"End the drains of the service now: its draining instances wait for no connection. The "+
			"instances of a service that is being removed do so as well.", h.finish)
	route(a, "restart-service", "POST /v1/services/{name}/restart",
		"Replace all instances of a service, or one, by new ones of the same revision. A new one serves "+
			"before an old one leaves, unless the service stops first. With cancel, end the restart in "+
			"progress.", h.restart)
	route(a, "undo-rollout", "POST"+path+"/undo",
		"End the rollout in progress and keep the revision that serves. Outside a rollout, deploy the "+
			"spec that served before.", h.undo)
}

func (h rollouts) show(ctx context.Context, in *struct{ Named }) (*progressed, error) {
	return progress(h.Rollout(ctx, in.key()))
}

// progressed is an answer about a rollout.
type progressed struct{ Body pando.RolloutStatus }

func progress(st pando.RolloutStatus, err error) (*progressed, error) {
	return &progressed{st}, err
}

// Reasoned is the body of a change with a reason for the record.
type Reasoned struct {
	Reason string `json:"reason,omitempty" maxLength:"400"`
}

func (h rollouts) pause(ctx context.Context, in *struct {
	Named
	Asking
	Body Reasoned
}) (*progressed, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return progress(h.PauseRollout(ctx, in.key(), in.Body.Reason, by))
}

func (h rollouts) resume(ctx context.Context, in *struct {
	Named
	Asking
}) (*progressed, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return progress(h.ResumeRollout(ctx, in.key(), by))
}

func (h rollouts) finish(ctx context.Context, in *struct {
	Named
	Asking
}) (*struct{}, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.EndDrains(ctx, in.key(), by)
}

func (h rollouts) restart(ctx context.Context, in *struct {
	Named
	Asking
	Body pando.RestartAsk
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.Restart(ctx, in.key(), in.Body, by))
}

func (h rollouts) undo(ctx context.Context, in *struct {
	Named
	Asking
	Body Reasoned
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.UndoRollout(ctx, in.key(), in.Body.Reason, by))
}

// Rollout shows the rollout of a service.
func (c *Client) Rollout(
	ctx context.Context, s pando.ServiceKey,
) (pando.RolloutStatus, error) {
	path, q := of(s, "/rollout")
	return call[pando.RolloutStatus](ctx, c, "GET", path, q, nil)
}

// PauseRollout pauses the rollout of a service.
func (c *Client) PauseRollout(
	ctx context.Context, s pando.ServiceKey, reason string,
) (pando.RolloutStatus, error) {
	path, q := of(s, "/rollout/pause")
	return call[pando.RolloutStatus](ctx, c, "POST", path, q, Reasoned{Reason: reason})
}

// ResumeRollout continues the rollout of a service.
func (c *Client) ResumeRollout(
	ctx context.Context, s pando.ServiceKey,
) (pando.RolloutStatus, error) {
	path, q := of(s, "/rollout/pause")
	return call[pando.RolloutStatus](ctx, c, "DELETE", path, q, nil)
}

// EndDrains ends the drains of a service now.
func (c *Client) EndDrains(ctx context.Context, s pando.ServiceKey) error {
	path, q := of(s, "/rollout/finish")
	_, err := call[struct{}](ctx, c, "POST", path, q, nil)
	return err
}

// Restart replaces the instances of a service.
func (c *Client) Restart(
	ctx context.Context, s pando.ServiceKey, ask pando.RestartAsk,
) (pando.ServiceStatus, error) {
	path, q := of(s, "/restart")
	return call[pando.ServiceStatus](ctx, c, "POST", path, q, ask)
}

// UndoRollout ends the rollout of a service, or goes back to the revision that served before.
func (c *Client) UndoRollout(
	ctx context.Context, s pando.ServiceKey, reason string,
) (pando.ServiceStatus, error) {
	path, q := of(s, "/rollout/undo")
	return call[pando.ServiceStatus](ctx, c, "POST", path, q, Reasoned{Reason: reason})
}
