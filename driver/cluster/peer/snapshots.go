package peer

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"pando.run/pando"
)

// SnapshotsPath is the path of the requests about the snapshots of a host. Only the server may ask
// for it.
const SnapshotsPath = "/peer/snapshots"

// Snapshot stores a snapshot of an instance of a host.
func (c *Client) Snapshot(
	ctx context.Context, h pando.Host, ask pando.SnapshotAsk,
) (out pando.SealedSnapshot, err error) {
	q := url.Values{"instance": {string(ask.Instance)}}
	if ask.Plain {
		q.Set("plain", "true")
	}
	return out, c.read(ctx, h, http.MethodPost, SnapshotsPath, q, nil, &out)
}

// Snapshots returns the snapshots of a host.
func (c *Client) Snapshots(
	ctx context.Context, h pando.Host, s pando.ServiceKey,
) (out []pando.SealedSnapshot, err error) {
	q := url.Values{}
	if s.Name != "" {
		q = url.Values{"tenant": {string(s.Tenant)}, "service": {string(s.Name)}}
	}
	return out, c.get(ctx, h, SnapshotsPath, q, &out)
}

// DropSnapshot deletes a snapshot of a host.
func (c *Client) DropSnapshot(
	ctx context.Context, h pando.Host, s pando.ServiceKey, digest string,
) error {
	var done struct{}
	return c.read(ctx, h, http.MethodDelete, SnapshotsPath, url.Values{
		"tenant": {string(s.Tenant)}, "service": {string(s.Name)}, "snapshot": {digest}}, nil, &done)
}

// snapshotRoutes serves the snapshots of a host.
func snapshotRoutes(mux *http.ServeMux, a pando.HostAgent) {
	mux.HandleFunc("POST "+SnapshotsPath, func(w http.ResponseWriter, r *http.Request) {
		s, err := a.Snapshot(r.Context(), pando.SnapshotAsk{
			Instance: pando.InstanceID(r.FormValue("instance")),
			Plain:    r.FormValue("plain") == "true"})
		answer(w, s, err)
	})
	mux.HandleFunc("GET "+SnapshotsPath, func(w http.ResponseWriter, r *http.Request) {
		var s pando.ServiceKey
		var err error
		if r.FormValue("service") != "" {
			s, err = service(r)
		}
		var all []pando.SealedSnapshot
		if err == nil {
			all, err = a.Snapshots(r.Context(), s)
		}
		answer(w, all, err)
	})
	mux.HandleFunc("DELETE "+SnapshotsPath, func(w http.ResponseWriter, r *http.Request) {
		s, err := service(r)
		digest := r.FormValue("snapshot")
		if err == nil && digest == "" {
			err = fmt.Errorf("%w: the request names no snapshot", pando.ErrInvalid)
		}
		if err == nil {
			err = a.DropSnapshot(r.Context(), s, digest)
		}
		answer(w, struct{}{}, err)
	})
}
