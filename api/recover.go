package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
)

// recoveries serves pando.Recoveries.
type recoveries struct{ pando.Recoveries }

// routes adds the operation on a stateful service that waits for an operator.
func (h recoveries) routes(a huma.API) {
	route(a, "recover-service", "POST /v1/services/{name}/recover",
		"Start a stateful service from one ordinal, or give up the volumes of an ordinal.", h.recover)
}

func (h recoveries) recover(ctx context.Context, in *struct {
	Named
	Asking
	Body pando.Recovery
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.Recover(ctx, in.key(), in.Body, by))
}

// Recover ends the wait of a stateful service.
func Recover(
	ctx context.Context, c *Client, s pando.ServiceKey, r pando.Recovery,
) (pando.ServiceStatus, error) {
	path, q := of(s, "/recover")
	return call[pando.ServiceStatus](ctx, c, "POST", path, q, r)
}
