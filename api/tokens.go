package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// tokensFace serves the requests about the tokens of tenants.
type tokensFace struct{ operators access.Operators }

// routes adds its operations.
func (h tokensFace) routes(a huma.API) {
	const path = "/v1/tenants/{tenant}/tokens/{token}"
	route(a, "list-tenant-tokens", "GET /v1/tenant-tokens",
		"List the tokens of tenants, without their secrets.", h.list)
	route(a, "issue-tenant-token", "POST "+path,
		"Make a token, by which a caller from outside the hosts uses this API for one tenant. The text "+
			"of the token is in this answer alone.", h.issue)
	route(a, "remove-tenant-token", "DELETE "+path,
		"End a token, within a second also for requests in progress.", h.remove)
}

// NamedToken is the token that a request concerns.
type NamedToken struct {
	Tenant pando.Tenant `path:"tenant" doc:"name of the tenant" example:"acme"`
	Token  string       `path:"token" doc:"name of the token" example:"ci"`
}

func (n NamedToken) key() access.TokenKey { return access.TokenKey{Tenant: n.Tenant, Name: n.Token} }

func (h tokensFace) list(ctx context.Context, _ *nothing) (*listOf[access.TokenStatus], error) {
	return all(h.operators.Tokens(ctx))
}

func (h tokensFace) issue(ctx context.Context, in *struct {
	NamedToken
	Asking
	Body access.TokenChange
}) (*struct{ Body access.IssuedToken }, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	i, ok := behind(h.operators).(access.Issuer)
	if !ok {
		return nil, fmt.Errorf("%w: this server makes no tokens", pando.ErrUnsupported)
	}
	made, err := i.IssueToken(ctx, in.key(), in.Body, by)
	if err != nil {
		return nil, err
	}
	return &struct{ Body access.IssuedToken }{made}, nil
}

func (h tokensFace) remove(ctx context.Context, in *struct {
	NamedToken
	Asking
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveToken(ctx, in.key(), by)
}

func ofToken(k access.TokenKey) string { return ofTenant(k.Tenant) + "/tokens/" + k.Name }

// Tokens lists the tokens of tenants.
func (c TenantClient) Tokens(ctx context.Context) ([]access.TokenStatus, error) {
	return call[[]access.TokenStatus](ctx, c.Client, http.MethodGet, "/v1/tenant-tokens", nil, nil)
}

// IssueToken makes a token.
func (c TenantClient) IssueToken(
	ctx context.Context, k access.TokenKey, change access.TokenChange,
) (access.IssuedToken, error) {
	return call[access.IssuedToken](ctx, c.Client, http.MethodPost, ofToken(k), nil, change)
}

// RemoveToken ends a token.
func (c TenantClient) RemoveToken(ctx context.Context, k access.TokenKey) error {
	_, err := call[struct{}](ctx, c.Client, http.MethodDelete, ofToken(k), nil, nil)
	return err
}
