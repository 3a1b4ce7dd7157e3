package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// hostsFace serves the operations about what runs on hosts.
type hostsFace struct{ operators access.Operators }

// work returns the requests about what runs on hosts.
func (h hostsFace) work() (pando.HostOperators, error) {
	if w, ok := behind(h.operators).(pando.HostWorker); ok {
		return w.HostWork(), nil
	}
	return nil, fmt.Errorf("%w: this server moves nothing between hosts", pando.ErrUnsupported)
}

// routes adds its operations.
func (h hostsFace) routes(a huma.API) {
	const path = " /v1/hosts/{host}/drain"
	route(a, "show-drain", "GET"+path,
		"Show what is left on a host, and why. What stays needs a change by an operator.", h.show)
	route(a, "drain-host", "PUT"+path,
		"Drain a host: it takes no new instances, and those that it has start elsewhere before they "+
			"leave. The mark outlives restarts of the host. A second request replaces the time.", h.drain)
	route(a, "undrain-host", "DELETE"+path,
		"Let a drained host take new instances again. Nothing moves back by itself.", h.undrain)
	route(a, "rebalance", "POST /v1/rebalance",
		"Move instances from loaded hosts to others, a few at a time; each starts there before it leaves. "+
			"Ask again until nothing moves. With dry_run, return the plan.", h.rebalance)
}

// OneHost is the host that a request concerns.
type OneHost struct {
	Host pando.HostName `path:"host" doc:"name of the host" example:"host2"`
}

// drains is an answer about the drain of a host.
type drains struct{ Body pando.HostDrainStatus }

func (h hostsFace) show(ctx context.Context, in *struct{ OneHost }) (*drains, error) {
	work, err := h.work()
	if err != nil {
		return nil, err
	}
	st, err := work.HostDrain(ctx, in.Host)
	return &drains{st}, err
}

// DrainAsk is the body of a request to drain a host.
type DrainAsk struct {
	ForSeconds float64 `json:"for_seconds,omitempty" minimum:"0" maximum:"31622400"` // 0: until its end
}

func (h hostsFace) drain(ctx context.Context, in *struct {
	OneHost
	Asking
	Body DrainAsk
}) (*drains, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	work, err := h.work()
	if err != nil {
		return nil, err
	}
	st, err := work.DrainHost(ctx, in.Host, pando.Seconds(in.Body.ForSeconds), by)
	return &drains{st}, err
}

func (h hostsFace) undrain(ctx context.Context, in *struct {
	OneHost
	Asking
}) (*drains, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	work, err := h.work()
	if err != nil {
		return nil, err
	}
	st, err := work.UndrainHost(ctx, in.Host, by)
	return &drains{st}, err
}

// RebalanceAsk is the body of a request to make the loads of hosts even.
type RebalanceAsk struct {
	Service pando.ServiceName `json:"service,omitempty"` // none: all services
	Tenant  pando.Tenant      `json:"tenant,omitempty"`  // of the service; none: default
	DryRun  bool              `json:"dry_run,omitempty"`
}

func (h hostsFace) rebalance(ctx context.Context, in *struct {
	Asking
	Body RebalanceAsk
}) (*struct{ Body pando.Rebalance }, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	ask := pando.RebalanceAsk{DryRun: in.Body.DryRun}
	if in.Body.Service != "" {
		ask.Service = pando.ServiceKey{Tenant: cmp.Or(in.Body.Tenant, pando.DefaultTenant),
			Name: in.Body.Service}
	}
	work, err := h.work()
	if err != nil {
		return nil, err
	}
	made, err := work.Rebalance(ctx, ask, by)
	return &struct{ Body pando.Rebalance }{made}, err
}

// Rebalance begins the next moves of a rebalance, or returns its plan.
func (m MembersClient) Rebalance(
	ctx context.Context, ask pando.RebalanceAsk,
) (pando.Rebalance, error) {
	return call[pando.Rebalance](ctx, m.c, http.MethodPost, "/v1/rebalance", nil,
		RebalanceAsk{ask.Service.Name, ask.Service.Tenant, ask.DryRun})
}

// HostDrain shows what is left on a host, and why.
func (m MembersClient) HostDrain(
	ctx context.Context, h pando.HostName,
) (pando.HostDrainStatus, error) {
	return call[pando.HostDrainStatus](ctx, m.c, http.MethodGet, "/v1/hosts/"+string(h)+"/drain", nil,
		nil)
}

// DrainHost drains a host for a time (0: until UndrainHost).
func (m MembersClient) DrainHost(
	ctx context.Context, h pando.HostName, keep time.Duration,
) (pando.HostDrainStatus, error) {
	return call[pando.HostDrainStatus](ctx, m.c, http.MethodPut, "/v1/hosts/"+string(h)+"/drain", nil,
		DrainAsk{keep.Seconds()})
}

// UndrainHost lets a drained host take new instances again.
func (m MembersClient) UndrainHost(
	ctx context.Context, h pando.HostName,
) (pando.HostDrainStatus, error) {
	return call[pando.HostDrainStatus](ctx, m.c, http.MethodDelete, "/v1/hosts/"+string(h)+"/drain", nil,
		nil)
}
