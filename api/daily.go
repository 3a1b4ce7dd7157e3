package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// dayToDay adds the operations by which people look after a service that runs.
func (h operators) dayToDay(a huma.API) {
	route(a, "history", "GET /v1/services/{name}/revisions",
		"List the stored revisions of a service, oldest first: the newest 20 and those in use.",
		h.revisions)
	route(a, "stats", "GET /v1/stats",
		"Show the processor time, memory and connections of instances, with one request per host.",
		h.stats)
	h.exec(a)
	runs{h.operators}.routes(a)
	route(a, "rollback", "POST /v1/services/{name}/rollback",
		"Deploy the spec of an older revision again.", h.rollback)
	rollouts{h.operators}.routes(a)
	recoveries{h.operators}.routes(a)
}

func (h operators) revisions(
	ctx context.Context, in *struct{ Named },
) (*listOf[pando.Revision], error) {
	return all(h.operators.Revisions(ctx, in.key()))
}

// GoingBack is the body that chooses an older revision.
type GoingBack struct {
	// To is the number of the revision. 0: the serving one during a rollout, else the newest that
	// served before it with another spec.
	To     int    `json:"to,omitempty" minimum:"0"`
	Reason string `json:"reason,omitempty" maxLength:"400"` // for the record
}

func (h operators) rollback(ctx context.Context, in *struct {
	Named
	Asking
	Body GoingBack
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.operators.Rollback(ctx, in.key(), in.Body.To, in.Body.Reason, by))
}

func (h operators) logs(ctx context.Context, in *struct {
	Named
	Instance pando.InstanceID `query:"instance" doc:"only this instance, without its name"`
	Lines    int              `query:"lines" minimum:"0" maximum:"100000" doc:"the newest of each"`
	Follow   bool             `query:"follow" doc:"also later lines, and later instances"`
	Since    time.Time        `query:"since" doc:"only lines from this time on"`
	Match    string           `query:"match" maxLength:"1000" doc:"a regular expression (RE2)"`
	Times    bool             `query:"times" doc:"each line with its time, after the instance"`
}) (func(*sender), error) {
	lines, err := h.operators.Logs(ctx, in.key(), in.Instance, pando.LogQuery{
		Lines: in.Lines, Follow: in.Follow, Since: in.Since, Match: in.Match,
	})
	if err != nil {
		return nil, err
	}
	return func(to *sender) {
		log := logs.Printed(lines, in.Instance == "", in.Times)
		defer log.Close()
		defer context.AfterFunc(ctx, func() { log.Close() })()
		b := make([]byte, 32<<10)
		for {
			n, err := log.Read(b)
			if n > 0 && !to.send(b[:n]) || err != nil {
				return // the caller is gone, or the log has ended and all of it has been sent
			}
		}
	}, nil
}

func (h operators) steering(ctx context.Context, in *struct {
	Services []pando.ServiceName `query:"service,explode" required:"true" minItems:"1" doc:"each name"`
	Tenant   pando.Tenant        `query:"tenant" default:"default" doc:"owner of the services"`
	Wait     float64             `query:"wait_seconds" minimum:"0" maximum:"8" doc:"for all hosts"`
}) (*listOf[pando.HostSteering], error) {
	var of []pando.ServiceKey
	for _, name := range in.Services {
		if err := pando.CheckLabel("service", string(name)); err != nil {
			return nil, err
		}
		of = append(of, pando.ServiceKey{Tenant: in.Tenant, Name: name})
	}
	return all(h.operators.Steering(ctx, of, pando.Seconds(in.Wait)))
}

// SteeringClient asks which hosts steer services.
type SteeringClient struct{ *Client }

// Steering reports for each host whether it steers services of one tenant by their newest
// endpoints. It waits for all hosts, at most pando.SteeringWaitMax.
func (c SteeringClient) Steering(
	ctx context.Context, tenant pando.Tenant, of []pando.ServiceName, wait time.Duration,
) ([]pando.HostSteering, error) {
	q := url.Values{"tenant": {string(tenant)},
		"wait_seconds": {strconv.FormatFloat(wait.Seconds(), 'f', -1, 64)}}
	for _, name := range of {
		q.Add("service", string(name))
	}
	return call[[]pando.HostSteering](ctx, c.Client, http.MethodGet, "/v1/steering", q, nil)
}

func (h operators) stats(ctx context.Context, in *struct {
	Service pando.ServiceName `query:"service" doc:"only instances of this service"`
	Tenant  pando.Tenant      `query:"tenant" default:"default" doc:"owner of the service"`
}) (*listOf[pando.InstanceUsage], error) {
	key, err := optionalKey(in.Tenant, in.Service)
	if err != nil {
		return nil, err
	}
	return all(h.operators.Stats(ctx, key))
}
