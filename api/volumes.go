package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// volumesFace serves the requests about volumes.
type volumesFace struct{ operators access.Operators }

// routes adds the operations on volumes.
func (h volumesFace) routes(a huma.API) {
	route(a, "list-volumes", "GET /v1/volumes",
		"List the volumes on all hosts, with one request per host. Those of removed services are "+
			"among them.", h.listVolumes)
	route(a, "remove-volume", "DELETE /v1/services/{name}/volumes/{volume}",
		"Delete a volume with its files. The service is removed, or its spec lacks the volume.",
		h.removeVolume)
}

func (h volumesFace) listVolumes(ctx context.Context, in *struct {
	Service pando.ServiceName `query:"service" doc:"only volumes of this service"`
	Tenant  pando.Tenant      `query:"tenant" default:"default" doc:"owner of the service"`
	Volume  string            `query:"volume" doc:"only volumes with this name"`
	Measure bool              `query:"measure" doc:"also sizes: their host reads every folder"`
}) (*listOf[pando.KeptVolume], error) {
	of, err := optionalKey(in.Tenant, in.Service)
	if err != nil {
		return nil, err
	}
	q := pando.VolumeQuery{Name: in.Volume, Measure: in.Measure, Service: of}
	return all(h.operators.Volumes(ctx, q))
}

func (h volumesFace) removeVolume(ctx context.Context, in *struct {
	Named
	Asking
	Volume string `path:"volume" doc:"name of the volume" example:"data"`
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveVolume(ctx, in.key(), in.Volume, by)
}

// Volumes lists volumes on all hosts.
func (c *Client) Volumes(
	ctx context.Context, q pando.VolumeQuery,
) ([]pando.KeptVolume, error) {
	v := url.Values{"volume": {q.Name}, "measure": {strconv.FormatBool(q.Measure)}}
	if q.Service.Name != "" {
		v.Set("service", string(q.Service.Name))
		v.Set("tenant", string(q.Service.Tenant))
	}
	return call[[]pando.KeptVolume](ctx, c, http.MethodGet, "/v1/volumes", v, nil)
}

// RemoveVolume deletes a volume of a service with its files.
func (c *Client) RemoveVolume(ctx context.Context, s pando.ServiceKey, name string) error {
	path, q := of(s, "/volumes/"+url.PathEscape(name))
	_, err := call[struct{}](ctx, c, http.MethodDelete, path, q, nil)
	return err
}
