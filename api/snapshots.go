package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// snapshotsFace serves the requests about snapshots.
type snapshotsFace struct{ operators access.Operators }

// routes adds the operations on snapshots.
func (h snapshotsFace) routes(a huma.API) {
	route(a, "list-snapshots", "GET /v1/snapshots",
		"List the snapshots on all hosts, newest first, with one request per host.", h.list)
	route(a, "snapshot", "POST /v1/services/{name}/snapshots",
		"Store a snapshot of an instance: its processes and its files in memory. It runs on.", h.take)
	route(a, "remove-snapshot", "DELETE /v1/services/{name}/snapshots/{snapshot}",
		"Delete a snapshot on every host that has it.", h.removeSnapshot)
	route(a, "restore-snapshot", "POST /v1/services/{name}/snapshots/{snapshot}/restore",
		"Start one more instance, which continues from a snapshot.", h.restore)
	route(a, "migrate", "POST /v1/services/{name}/move",
		"Move an instance to another host, with its memory and its connections.", h.migrate)
}

func (h snapshotsFace) list(ctx context.Context, in *struct {
	Service pando.ServiceName `query:"service" doc:"only snapshots of this service"`
	Tenant  pando.Tenant      `query:"tenant" default:"default" doc:"owner of the service"`
}) (*listOf[pando.SnapshotStatus], error) {
	s, err := optionalKey(in.Tenant, in.Service)
	if err != nil {
		return nil, err
	}
	return all(h.operators.Snapshots(ctx, s))
}

// stored is an answer about one snapshot.
type stored struct{ Body pando.SnapshotStatus }

func (h snapshotsFace) take(ctx context.Context, in *struct {
	Named
	Asking
	Instance pando.InstanceID `query:"instance" doc:"this instance, else the first that serves"`
	Plain    bool             `query:"plain" doc:"do not encrypt its files with the key of the cluster"`
}) (*stored, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	st, err := h.operators.Snapshot(ctx, in.key(),
		pando.SnapshotAsk{Instance: in.Instance, Plain: in.Plain}, by)
	return &stored{st}, err
}

// OfSnapshot names a snapshot.
type OfSnapshot struct {
	Snapshot string `path:"snapshot" maxLength:"100" doc:"its digest, or at least 6 digits of it"`
}

func (h snapshotsFace) removeSnapshot(ctx context.Context, in *struct {
	Named
	Asking
	OfSnapshot
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveSnapshot(ctx, in.key(), in.Snapshot, by)
}

// intended is an answer with one intent.
type intended struct{ Body pando.Intent }

func (h snapshotsFace) restore(ctx context.Context, in *struct {
	Named
	Asking
	OfSnapshot
}) (*intended, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	i, err := h.operators.RestoreSnapshot(ctx, in.key(), in.Snapshot, by)
	return &intended{i}, err
}

// moved is an answer about one move.
type moved struct{ Body pando.MoveStatus }

func (h snapshotsFace) migrate(ctx context.Context, in *struct {
	Named
	Asking
	Instance pando.InstanceID `query:"instance" doc:"this instance, else the first that serves"`
	To       pando.HostName   `query:"to" doc:"to this host, else the best one"`
}) (*moved, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	st, err := h.operators.Migrate(ctx, in.key(), in.Instance, in.To, by)
	return &moved{st}, err
}

// SnapshotClient is the part of a client for snapshots.
type SnapshotClient struct{ c *Client }

// SnapshotsOf returns the part of a client for snapshots.
func SnapshotsOf(c *Client) SnapshotClient { return SnapshotClient{c} }

// All lists the snapshots on all hosts.
func (c SnapshotClient) All(
	ctx context.Context, s pando.ServiceKey,
) ([]pando.SnapshotStatus, error) {
	v := url.Values{}
	if s.Name != "" {
		v.Set("service", string(s.Name))
		v.Set("tenant", string(s.Tenant))
	}
	return call[[]pando.SnapshotStatus](ctx, c.c, http.MethodGet, "/v1/snapshots", v, nil)
}

// Take stores a snapshot of an instance of a service.
func (c SnapshotClient) Take(
	ctx context.Context, s pando.ServiceKey, ask pando.SnapshotAsk,
) (pando.SnapshotStatus, error) {
	path, q := of(s, "/snapshots")
	if ask.Instance != "" {
		q.Set("instance", string(ask.Instance))
	}
	if ask.Plain {
		q.Set("plain", "true")
	}
	return call[pando.SnapshotStatus](ctx, c.c, http.MethodPost, path, q, nil)
}

// Remove deletes a snapshot on every host that has it.
func (c SnapshotClient) Remove(ctx context.Context, s pando.ServiceKey, digest string) error {
	path, q := of(s, "/snapshots/"+url.PathEscape(digest))
	_, err := call[struct{}](ctx, c.c, http.MethodDelete, path, q, nil)
	return err
}

// Restore starts one more instance, which continues from a snapshot.
func (c SnapshotClient) Restore(
	ctx context.Context, s pando.ServiceKey, digest string,
) (pando.Intent, error) {
	path, q := of(s, "/snapshots/"+url.PathEscape(digest)+"/restore")
	return call[pando.Intent](ctx, c.c, http.MethodPost, path, q, nil)
}

// Migrate moves an instance, or the first that serves with i "", to a host, or to the best one with
// to "".
func (c SnapshotClient) Migrate(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, to pando.HostName,
) (pando.MoveStatus, error) {
	path, q := of(s, "/move")
	if i != "" {
		q.Set("instance", string(i))
	}
	if to != "" {
		q.Set("to", string(to))
	}
	return call[pando.MoveStatus](ctx, c.c, http.MethodPost, path, q, nil)
}
