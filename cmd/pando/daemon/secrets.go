package daemon

import (
	"context"
	"fmt"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/control"
	"pando.run/pando/driver/cluster/peer"
)

// asksOf serves the agent of the server's own host: its asks, and the secrets of its instances.
func asksOf(p place, ctl *control.Control) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", peer.ControlHandler(ctl))
	mux.Handle("GET "+peer.SecretsPath, peer.SecretsHandler(ctl.GiveSecrets,
		func(*http.Request) (pando.HostName, error) { return pando.HostName(p.Host), nil }))
	mux.Handle("GET "+peer.SnapshotKeyPath, peer.SecretsHandler(ctl.GiveSnapshotKeys,
		func(*http.Request) (pando.HostName, error) { return pando.HostName(p.Host), nil }))
	mux.Handle("GET "+peer.ImageRightPath, peer.ImageRightHandler(ctl.MayHaveImage))
	return mux
}

// secretsForMembers serves the secrets of instances, or the keys of their snapshots, to the agents
// of other hosts. A host gets those of its own instances alone.
func secretsForMembers[T any](
	give func(context.Context, pando.HostName, pando.InstanceID) (T, error), keeper *doorkeeper,
) http.Handler {
	return keeper.guard(peer.SecretsHandler(give,
		func(r *http.Request) (pando.HostName, error) {
			h, err := keeper.member(r.Context(), peer.Shown(r))
			if err == nil && h == "" {
				err = fmt.Errorf("%w: a server has no instances", pando.ErrForbidden)
			}
			return h, err
		}))
}

// secrets returns the way to the secrets of instances of this host.
func (c cluster) secrets(
	p place, peers *peer.Client,
) func(context.Context, pando.InstanceID) (map[string][]byte, error) {
	if c.server == "" {
		server := pando.Host{Name: "server", Endpoint: "unix://" + p.control()}
		return peer.Control{Client: peers, Server: server}.Secrets
	}
	by := &http.Client{Transport: c.toServer(serverWaitMax)}
	return func(ctx context.Context, i pando.InstanceID) (map[string][]byte, error) {
		return peer.RemoteSecrets(ctx, by, i)
	}
}

// snapshotKeys returns the way to the keys of the snapshots of instances of this host.
func (c cluster) snapshotKeys(
	p place, peers *peer.Client,
) func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error) {
	if c.server == "" {
		server := pando.Host{Name: "server", Endpoint: "unix://" + p.control()}
		return peer.Control{Client: peers, Server: server}.SnapshotKeys
	}
	by := &http.Client{Transport: c.toServer(serverWaitMax)}
	return func(ctx context.Context, i pando.InstanceID) (pando.SnapshotKeys, error) {
		return peer.RemoteSnapshotKeys(ctx, by, i)
	}
}

// imageRight returns the way to ask a server whether another host may have an image.
func (c cluster) imageRight(
	p place, peers *peer.Client,
) func(context.Context, pando.ImageQuestion) error {
	if c.server == "" {
		server := pando.Host{Name: "server", Endpoint: "unix://" + p.control()}
		return peer.Control{Client: peers, Server: server}.MayHaveImage
	}
	by := &http.Client{Transport: c.toServer(serverWaitMax)}
	return func(ctx context.Context, q pando.ImageQuestion) error {
		return peer.RemoteImageRight(ctx, by, q)
	}
}
