package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
)

// dayToDay adds the operations by which people look after a service that runs.
func (h operators) dayToDay(a huma.API) {
	route(a, "history", "GET /v1/services/{name}/revisions",
		"List the stored revisions of a service, oldest first: the newest 20 and those in use.",
		h.revisions)
	route(a, "rollback", "POST /v1/services/{name}/rollback",
		"Deploy the spec of an older revision again.", h.rollback)
}

func (h operators) revisions(
	ctx context.Context, in *struct{ Named },
) (*listOf[pando.Revision], error) {
	return all(h.Revisions(ctx, in.key()))
}

// GoingBack is the body that chooses an older revision.
type GoingBack struct {
	// To is the number of the revision. 0: the serving one during a rollout, else the newest that
	// served before it with another spec.
	To     int    `json:"to,omitempty" minimum:"0"`
	Reason string `json:"reason,omitempty" maxLength:"400"` // for the record
}

func (h operators) rollback(ctx context.Context, in *struct {
	Named
	Asking
	Body GoingBack
}) (*one, error) {
	by, err := in.by()
	if err != nil {
		return nil, err
	}
	return about(h.Rollback(ctx, in.key(), in.Body.To, in.Body.Reason, by))
}
