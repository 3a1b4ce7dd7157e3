package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// secretsFace serves the requests about secrets.
type secretsFace struct{ operators access.Operators }

// routes adds the operations on secrets. None returns a content.
func (h secretsFace) routes(a huma.API) {
	route(a, "list-secrets", "GET /v1/secrets",
		"List the secrets of all tenants by name, with the services that name them.", h.listSecrets)
	route(a, "set-secret", "PUT /v1/secrets/{secret}",
		"Store a secret, encrypted, or replace its content. Running instances get the new content.",
		h.setSecret)
	route(a, "remove-secret", "DELETE /v1/secrets/{secret}",
		"Remove a secret that no service has in its spec.", h.removeSecret)
}

// NamedSecret is the secret that a request concerns.
type NamedSecret struct {
	Secret string       `path:"secret" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$" doc:"name of the secret" example:"db-password"`
	Tenant pando.Tenant `query:"tenant" default:"default" doc:"owner of the secret"`
}

func (n NamedSecret) key() pando.SecretKey {
	return pando.SecretKey{Tenant: n.Tenant, Name: n.Secret}
}

// SecretContent is the body that sets a secret.
type SecretContent struct {
	Content []byte `json:"content" doc:"in base64"`
}

func (h secretsFace) listSecrets(
	ctx context.Context, _ *nothing,
) (*listOf[pando.SecretStatus], error) {
	return all(h.operators.Secrets(ctx))
}

// oneSecret is an answer about one secret.
type oneSecret struct{ Body pando.SecretStatus }

func (h secretsFace) setSecret(ctx context.Context, in *struct {
	NamedSecret
	Asking
	Body SecretContent
}) (*oneSecret, error) {
	by, err := in.bySecretly(ctx)
	if err != nil {
		return nil, err
	}
	st, err := h.operators.SetSecret(ctx, in.key(), in.Body.Content, by)
	return &oneSecret{st}, err
}

func (h secretsFace) removeSecret(ctx context.Context, in *struct {
	NamedSecret
	Asking
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveSecret(ctx, in.key(), by)
}

func ofSecret(k pando.SecretKey) (string, url.Values) {
	return "/v1/secrets/" + url.PathEscape(k.Name), url.Values{"tenant": {string(k.Tenant)}}
}

// SecretClient calls the requests about secrets.
type SecretClient struct{ *Client }

// Secrets lists the secrets.
func (c SecretClient) Secrets(ctx context.Context) ([]pando.SecretStatus, error) {
	return call[[]pando.SecretStatus](ctx, c.Client, http.MethodGet, "/v1/secrets", nil, nil)
}

// SetSecret stores a secret, or replaces its content.
func (c SecretClient) SetSecret(
	ctx context.Context, k pando.SecretKey, content []byte,
) (pando.SecretStatus, error) {
	path, q := ofSecret(k)
	return call[pando.SecretStatus](ctx, c.Client, http.MethodPut, path, q, SecretContent{content})
}

// RemoveSecret removes a secret that no service names.
func (c SecretClient) RemoveSecret(ctx context.Context, k pando.SecretKey) error {
	path, q := ofSecret(k)
	_, err := call[struct{}](ctx, c.Client, http.MethodDelete, path, q, nil)
	return err
}
