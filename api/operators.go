package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
)

// operators serves access.Operators.
type operators struct {
	operators access.Operators
	ready     func(context.Context) error
	answers   *answers
	listeners *share.Pool[string]
}

// OperatorsHandler serves the operators' API. Any process that can open its socket may use it.
// ready reports whether the store answers.
func OperatorsHandler(ops access.Operators, ready func(context.Context) error) http.Handler {
	h := operators{veiled{fenced{ops}}, ready, newAnswers(), share.New[string](listenersBound)}
	names := newKeys()
	mux := http.NewServeMux()
	a := humago.New(mux, document())
	a.UseMiddleware(givenEmpty)
	if to, ok := ops.(access.Auditor); ok {
		a.UseMiddleware(audited(to))
	}
	h.routes(a)
	for _, prefix := range octaviaPrefixes {
		mux.Handle(prefix, http.StripPrefix(prefix, loadBalancers{h.operators, ops}))
	}
	mux.Handle("GET /state/", ops.State())
	mux.Handle("POST /state/", ops.State())
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(openAPI) // the caller is gone
	})
	mux.Handle("GET /metrics", h.metrics())
	return reportingWaits(h.answers.counted(names.naming(isJSON(known(mux)))))
}

// isJSON declares every body as JSON. curl, for example, declares each body as a form.
func isJSON(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			r.Header.Set("Content-Type", "application/json")
		}
		next.ServeHTTP(w, r)
	})
}

// routes adds the operations of the contract.
func (h operators) routes(a huma.API) {
	route(a, "list-services", "GET /v1/services", "List every service with its instances.", h.list)
	route(a, "deploy", "POST /v1/services",
		"Make a spec the newest revision of its service, and create the service if it is new. A spec "+
			"equal to the newest one changes nothing.", h.deploy)
	h.dayToDay(a)
	h.imageRoutes(a)
	volumesFace{h.operators}.routes(a)
	snapshotsFace{h.operators}.routes(a)
	secretsFace{h.operators}.routes(a)
	tenantsFace{h.operators}.routes(a)
	tokensFace{h.operators}.routes(a)
	auditFace{h.operators}.routes(a)
	billsFace{h.operators}.routes(a)
	route(a, "show-service", "GET /v1/services/{name}", "Show one service with its instances.", h.show)
	route(a, "remove-service", "DELETE /v1/services/{name}",
		"Drain every instance, merge its state, then remove the service.", h.remove)
	route(a, "pin", "POST /v1/services/{name}/pin",
		"Fix the number of instances for a while. Automatic scaling rests until then.", h.pin)
	route(a, "unpin", "DELETE /v1/services/{name}/pin", "Make scaling automatic again.", h.unpin)
	route(a, "why", "GET /v1/services/{name}/why",
		"List the intents and decisions of a service, newest last, each with its reason.", h.why)
	route(a, "fits", "GET /v1/services/{name}/fits",
		"Report for each host whether the next instance may start there, and why.", h.fits)
	stream(a, "logs", "GET /v1/services/{name}/logs", "text/plain",
		"Print the log of the instances, each line with its instance.", seated(h.listeners, h.logs))
	route(a, "counters", "GET /v1/services/{name}/counters",
		"Count flows, packets and bytes per instance since it was published.", h.counters)
	route(a, "steering", "GET /v1/steering",
		"Report for each host whether it steers services by their newest endpoints. Once every host "+
			"does, the first connection to a new VIP finds the service on all of them.", h.steering)
	route(a, "state-log", "GET /v1/services/{name}/state",
		"List the newest commits of a service's merged state.", h.stateLog)
	route(a, "list-hosts", "GET /v1/hosts", "List the hosts.", h.hosts)
	route(a, "remove-host", "DELETE /v1/hosts/{host}",
		"End the membership of a host. Its certificate becomes invalid, "+
			"its name and slot become free, and its instances are forgotten.", h.removeHost)
	rightsFace{h.operators}.routes(a)
	hostsFace{h.operators}.routes(a)
	stream(a, "watch", "GET /v1/watch", "text/event-stream",
		"Send every change of services, instances, intents and decisions as a server-sent event. "+
			"The id is the store revision of a whole commit. A client that returns it as Last-Event-ID "+
			"misses nothing.", seated(h.listeners, h.watch))
	route(a, "healthz", "GET /healthz", "Report that the process answers.", h.healthz)
	route(a, "readyz", "GET /readyz", "Report that the store answers and that a control leads.",
		h.readyz)
}

// Named is the service that a request concerns.
type Named struct {
	Name   pando.ServiceName `path:"name" doc:"name of the service" example:"website"`
	Tenant pando.Tenant      `query:"tenant" default:"default" doc:"owner of the service"`
}

// optionalKey returns the key of the service that a query names, or the zero key for none. A host that
// is asked about a name that cannot be one would refuse it, which is no silence of that host.
func optionalKey(t pando.Tenant, name pando.ServiceName) (s pando.ServiceKey, err error) {
	if name == "" {
		return s, nil
	}
	s = pando.ServiceKey{Tenant: t, Name: name}
	return s, errors.Join(pando.CheckLabel("tenant", string(t)),
		pando.CheckLabel("service", string(name)))
}

func (n Named) key() pando.ServiceKey { return pando.ServiceKey{Tenant: n.Tenant, Name: n.Name} }

// Asking holds the optional headers of a request that changes something. The document explains them
// (openapi.go).
type Asking struct {
	Operator string `header:"Pando-Operator" maxLength:"100" doc:"the operator's name, for the record"`
	Request  string `header:"Idempotency-Key" maxLength:"100" doc:"a second one has no effect"`
	IfMatch  string `header:"If-Match" doc:"the ETag of the version to change; 409 if it has changed"`
}

// by returns the asker of a request. All users of the socket are one asker for now. The request may
// carry a name for the record.
func (a Asking) by(ctx context.Context) (pando.Asker, error) {
	by, err := a.bySecretly(ctx)
	if n := namedOf(ctx); n != nil && err == nil {
		by.Digest = digestOf(n.all)
	}
	return by, err
}

// bySecretly is by for a request whose body no record may give away, not even as a digest.
func (a Asking) bySecretly(ctx context.Context) (pando.Asker, error) {
	by := pando.Asker{Kind: pando.AskerOperator, Name: a.Operator, Request: a.Request}
	if n := namedOf(ctx); n != nil {
		by.Digest = digestOf(n.public)
		if err := n.admit(); err != nil {
			return by, err
		}
	}
	if a.IfMatch == "" || a.IfMatch == "*" {
		return by, nil
	}
	n, err := strconv.ParseInt(strings.Trim(a.IfMatch, `"`), 10, 64)
	if err != nil || n <= 0 {
		return by, fmt.Errorf("%w: If-Match %s: want an ETag of this service, such as \"42\"",
			pando.ErrInvalid, a.IfMatch)
	}
	by.Seen = pando.StoreRevision(n)
	return by, nil
}

// one is an answer about one service.
type one struct {
	ETag string `header:"ETag" doc:"the version of the service's record, for If-Match"`
	Body pando.ServiceStatus
}

func about(st pando.ServiceStatus, err error) (*one, error) {
	return &one{ETag: strconv.Quote(strconv.FormatInt(int64(st.Version), 10)), Body: st}, err
}

// listOf is an answer with a list.
type listOf[T any] struct{ Body []T }

func all[T any](v []T, err error) (*listOf[T], error) {
	if v == nil {
		v = []T{}
	}
	return &listOf[T]{v}, err
}

type nothing struct{}

func (h operators) list(ctx context.Context, _ *nothing) (*listOf[pando.ServiceStatus], error) {
	return all(h.operators.Services(ctx))
}

func (h operators) deploy(ctx context.Context, in *struct {
	Asking
	Left string `header:"Pando-Left" maxLength:"8192" doc:"files that the bundle leaves out"`
	Body pando.Spec
}) (*one, error) {
	by, err := in.bySecretly(ctx)
	if err != nil {
		return nil, err
	}
	if d := access.DeedOf(ctx); d != nil {
		d.About("service", in.Body.Key().Tenant, string(in.Body.Name))
	}
	s, err := carried(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	st, err := h.operators.Deploy(ctx, s, by)
	if err == nil {
		st.Warnings = append(st.Warnings, leftOut(in.Left)...)
	}
	return about(st, err)
}

func (h operators) show(ctx context.Context, in *struct{ Named }) (*one, error) {
	return about(h.operators.Service(ctx, in.key()))
}

func (h operators) remove(ctx context.Context, in *struct {
	Named
	Asking
	Purge bool `query:"purge" doc:"also delete its state"`
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	// A state is gone for good. A captured host must not delete those of all tenants.
	if m, ok := callerOf(ctx); ok && in.Purge && !m.Has(pando.RightDeploy) {
		return nil, m.Lacks(pando.RightDeploy)
	}
	return nil, h.operators.Remove(ctx, in.key(), in.Purge, by)
}

// Pinned is the body that fixes a number of instances.
type Pinned struct {
	Instances  int     `json:"instances" minimum:"0" maximum:"4096"`
	ForSeconds float64 `json:"for_seconds,omitempty" minimum:"0"` // 0: until it is lifted
}

func (h operators) pin(ctx context.Context, in *struct {
	Named
	Asking
	Body Pinned
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.operators.Pin(ctx, in.key(), in.Body.Instances, pando.Seconds(in.Body.ForSeconds), by))
}

func (h operators) unpin(ctx context.Context, in *struct {
	Named
	Asking
}) (*one, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return about(h.operators.Unpin(ctx, in.key(), by))
}

func (h operators) why(ctx context.Context, in *struct {
	Named
	Max int `query:"max" minimum:"0" doc:"the newest so many; 0 is all that is kept"`
}) (*listOf[pando.Because], error) {
	return all(h.operators.Why(ctx, in.key(), in.Max))
}

func (h operators) fits(ctx context.Context, in *struct{ Named }) (*listOf[pando.HostFit], error) {
	return all(h.operators.Fits(ctx, in.key()))
}

func (h operators) counters(ctx context.Context,
	in *struct{ Named }) (*listOf[pando.EndpointCounters], error) {
	return all(h.operators.Counters(ctx, in.key()))
}

func (h operators) stateLog(ctx context.Context, in *struct {
	Named
	Max int `query:"max" minimum:"1" default:"20" doc:"the newest so many"`
}) (*listOf[pando.StateCommit], error) {
	return all(h.operators.StateLog(ctx, in.key(), in.Max))
}

func (h operators) hosts(ctx context.Context, _ *nothing) (*listOf[pando.HostStatus], error) {
	return all(h.operators.Hosts(ctx))
}

func (h operators) removeHost(ctx context.Context, in *struct {
	Asking
	Host  pando.HostName `path:"host" doc:"name of the host" example:"host2"`
	Force bool           `query:"force" doc:"also a live host, or one that keeps states"`
}) (*nothing, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	return nil, h.operators.RemoveHost(ctx, in.Host, in.Force, by)
}

// wellbeing is the answer of a probe.
type wellbeing struct {
	Body struct {
		Status string `json:"status" enum:"ok"`
	}
}

func (h operators) healthz(context.Context, *nothing) (*wellbeing, error) {
	var w wellbeing
	w.Body.Status = "ok"
	return &w, nil
}

func (h operators) readyz(ctx context.Context, _ *nothing) (*wellbeing, error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	return h.healthz(ctx, nil)
}

// known answers a request without a route with a problem, and refuses paths with dot segments.
func known(mux *http.ServeMux) http.Handler {
	return plainPaths(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		missed(mux, w, r)
	}))
}

// errMethod reports a path with routes for other methods only. Allow lists those methods.
var errMethod = errors.New("method not allowed")

// missed answers a request without a route. It reports a wrong path, or a wrong method with the
// allowed ones.
func missed(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	var methods []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = m
		if _, pattern := mux.Handler(other); pattern != "" {
			methods = append(methods, m)
		}
	}
	if len(methods) == 0 {
		refuse(w, r, fmt.Errorf("the path %s: %w", r.URL.Path, pando.ErrNotFound))
		return
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	fail(w, fmt.Errorf("%s %s: %w: want %s", r.Method, r.URL.Path, errMethod,
		strings.Join(methods, ", ")), nil)
}
