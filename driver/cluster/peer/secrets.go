package peer

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"pando.run/pando"
)

// SecretsPath is the path at which a server gives an agent the secrets of an instance of its host.
const SecretsPath = "/control/secrets"

// SnapshotKeyPath is the path of the keys of an instance's snapshots.
const SnapshotKeyPath = "/control/snapshot-key"

// SecretsHandler serves the secrets of instances, or the keys of their snapshots, to their hosts.
// hostOf returns the host that asks.
func SecretsHandler[T any](
	give func(context.Context, pando.HostName, pando.InstanceID) (T, error),
	hostOf func(*http.Request) (pando.HostName, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := hostOf(r)
		var all T
		if err == nil {
			all, err = give(r.Context(), h, pando.InstanceID(r.FormValue("instance")))
		}
		w.Header().Set("Cache-Control", "no-store")
		answer(w, all, err)
	})
}

// Secrets returns the secrets of an instance of this host from the server on this host.
func (c Control) Secrets(
	ctx context.Context, i pando.InstanceID,
) (out map[string][]byte, err error) {
	return out, c.Client.get(ctx, c.Server, SecretsPath, ofInstance(i), &out)
}

// SnapshotKeys returns the keys of an instance's snapshots from the server on this host.
func (c Control) SnapshotKeys(
	ctx context.Context, i pando.InstanceID,
) (out pando.SnapshotKeys, err error) {
	return out, c.Client.get(ctx, c.Server, SnapshotKeyPath, ofInstance(i), &out)
}

// RemoteSecrets returns the secrets of an instance of this host from a server on another host. The
// connections of the client lead to the server.
func RemoteSecrets(
	ctx context.Context, by *http.Client, i pando.InstanceID,
) (map[string][]byte, error) {
	return remotely[map[string][]byte](ctx, by, SecretsPath, ofInstance(i), "for secrets")
}

// RemoteSnapshotKeys returns the keys of an instance's snapshots from a server on another host.
func RemoteSnapshotKeys(
	ctx context.Context, by *http.Client, i pando.InstanceID,
) (pando.SnapshotKeys, error) {
	return remotely[pando.SnapshotKeys](ctx, by, SnapshotKeyPath, ofInstance(i),
		"for the keys of snapshots")
}

func ofInstance(i pando.InstanceID) url.Values { return url.Values{"instance": {string(i)}} }

// remotely asks a server on another host.
func remotely[T any](
	ctx context.Context, by *http.Client, path string, q url.Values, about string,
) (out T, err error) {
	u := url.URL{Scheme: "https", Host: "server", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return out, fmt.Errorf("ask the server %s: %w", about, err)
	}
	resp, err := by.Do(req)
	if err != nil {
		return out, fmt.Errorf("%w: ask the server %s: %w", pando.ErrUnavailable, about, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("ask the server %s: %w", about, readProblem(resp))
	}
	if err := readAnswer(resp.Body, hostAnswerMax, &out); err != nil {
		return out, fmt.Errorf("%w: ask the server %s: %w", pando.ErrUnavailable, about, err)
	}
	return out, nil
}
