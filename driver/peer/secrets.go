package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"pando.run/pando"
)

// SecretsPath is the path at which a server gives an agent the secrets of an instance of its host.
const SecretsPath = "/control/secrets"

// SecretsHandler serves the secrets of instances to their hosts. hostOf returns the host that asks.
func SecretsHandler(
	give func(context.Context, pando.HostName, pando.InstanceID) (map[string][]byte, error),
	hostOf func(*http.Request) (pando.HostName, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := hostOf(r)
		var all map[string][]byte
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
	return out, c.Client.get(ctx, c.Server, SecretsPath, url.Values{"instance": {string(i)}}, &out)
}

// RemoteSecrets returns the secrets of an instance of this host from a server on another host. The
// connections of the client lead to the server.
func RemoteSecrets(
	ctx context.Context, by *http.Client, i pando.InstanceID,
) (out map[string][]byte, err error) {
	u := url.URL{Scheme: "https", Host: "server", Path: SecretsPath,
		RawQuery: url.Values{"instance": {string(i)}}.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the server for secrets: %w", err)
	}
	resp, err := by.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: ask the server for secrets: %w", pando.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the server for secrets: %w", readProblem(resp))
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return nil, fmt.Errorf("%w: ask the server for secrets: %w", pando.ErrUnavailable, err)
	}
	return out, nil
}
