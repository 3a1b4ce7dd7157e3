package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// tenantsFace serves the requests about tenants.
type tenantsFace struct{ operators access.Operators }

// routes adds the operations on tenants.
func (h tenantsFace) routes(a huma.API) {
	route(a, "list-tenants", "GET /v1/tenants",
		"List the tenants with their quotas and their use.", h.listTenants)
	route(a, "set-tenant", "PATCH /v1/tenants/{tenant}",
		"Create the record of a tenant, or change the given quotas of it. 0 lifts a quota.", h.setTenant)
	route(a, "remove-tenant", "DELETE /v1/tenants/{tenant}",
		"Remove the record of a tenant without services.", h.removeTenant)
}

// NamedTenant is the tenant that a request concerns.
type NamedTenant struct {
	Tenant pando.Tenant `path:"tenant" doc:"name of the tenant" example:"acme"`
}

func (h tenantsFace) listTenants(
	ctx context.Context, _ *nothing,
) (*listOf[access.TenantStatus], error) {
	return all(h.operators.Tenants(ctx))
}

// oneTenant is an answer about one tenant.
type oneTenant struct{ Body access.TenantStatus }

func (h tenantsFace) setTenant(ctx context.Context, in *struct {
	NamedTenant
	Asking
	Body access.AccountChange
}) (*oneTenant, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	st, err := h.operators.SetTenant(ctx, in.Tenant, in.Body, by)
	return &oneTenant{st}, err
}

func (h tenantsFace) removeTenant(ctx context.Context, in *struct {
	NamedTenant
	Asking
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveTenant(ctx, in.Tenant, by)
}

// TenantClient calls the requests about tenants.
type TenantClient struct{ *Client }

// Tenants lists the tenants.
func (c TenantClient) Tenants(ctx context.Context) ([]access.TenantStatus, error) {
	return call[[]access.TenantStatus](ctx, c.Client, http.MethodGet, "/v1/tenants", nil, nil)
}

// SetTenant creates or changes the record of a tenant.
func (c TenantClient) SetTenant(
	ctx context.Context, t pando.Tenant, change access.AccountChange,
) (access.TenantStatus, error) {
	return call[access.TenantStatus](ctx, c.Client, http.MethodPatch, ofTenant(t), nil, change)
}

// RemoveTenant removes the record of a tenant without services.
func (c TenantClient) RemoveTenant(ctx context.Context, t pando.Tenant) error {
	_, err := call[struct{}](ctx, c.Client, http.MethodDelete, ofTenant(t), nil, nil)
	return err
}

func ofTenant(t pando.Tenant) string { return "/v1/tenants/" + url.PathEscape(string(t)) }
