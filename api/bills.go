package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// billsFace serves the bills of tenants.
type billsFace struct{ operators access.Operators }

// routes adds its operation.
func (h billsFace) routes(a huma.API) {
	route(a, "bills", "GET /v1/bills",
		"List the counted work of tenants: seconds of instances and of processors, bytes of their "+
			"links, decisions. A token of a tenant gets the lines of its tenant.", h.bills)
}

// bills returns lines for an operator, or those of its tenant for a token.
func (h billsFace) bills(ctx context.Context, in *struct {
	Tenant pando.Tenant      `query:"tenant" doc:"only of this tenant"`
	Since  time.Time         `query:"since" doc:"from the part with this time on; none: this month"`
	By     access.BillPeriod `query:"by" enum:"hour,day,month" doc:"a line each; none: one a tenant"`
}) (*listOf[access.BillLine], error) {
	from, ok := behind(h.operators).(access.Biller)
	if !ok {
		return nil, fmt.Errorf("%w: this server keeps no bills", pando.ErrUnsupported)
	}
	q := access.BillQuery{Tenant: in.Tenant, Since: in.Since, By: in.By}
	if t, token := access.TokenOf(ctx); token {
		if err := foreign(ctx, q.Tenant); err != nil && q.Tenant != "" {
			return nil, err
		}
		q.Tenant = t.Tenant
	}
	return all(from.Bills(ctx, q))
}

// Bills returns the lines of a query.
func Bills(ctx context.Context, c *Client, q access.BillQuery) ([]access.BillLine, error) {
	v := url.Values{}
	for name, text := range map[string]string{"tenant": string(q.Tenant), "by": string(q.By)} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	return call[[]access.BillLine](ctx, c, http.MethodGet, "/v1/bills", v, nil)
}

// bills adds the work of tenants since their first bill.
func (g gauges) bills(s sample) {
	from, ok := behind(g.operators).(access.Biller)
	if !ok {
		return
	}
	lines, err := from.Bills(g.ctx, access.BillQuery{Since: time.Unix(0, 0)})
	if err != nil {
		s.failed(metricBilled, err)
	}
	for _, l := range lines {
		for meter, v := range map[string]float64{
			"instance_seconds": l.InstanceSeconds, "cpu_seconds": l.CPUSeconds,
			"bytes_in": float64(l.BytesIn), "bytes_out": float64(l.BytesOut),
			"decisions": float64(l.Decisions),
		} {
			s.put(metricBilled, v, string(l.Tenant), meter)
		}
	}
}
