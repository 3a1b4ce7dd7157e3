package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// deedKey is the key of a request's auditor in its context.
type deedKey struct{}

// audited puts each request that changes something, or that reaches into an instance, into the
// audit. It runs before the operation; settled runs after it and before the answer.
func audited(to access.Auditor) func(huma.Context, func(huma.Context)) {
	return func(c huma.Context, next func(huma.Context)) {
		if c.Operation().Method == http.MethodGet {
			next(c)
			return
		}
		p := &access.Pending{Deed: deedOf(c)}
		ctx := context.WithValue(access.WithDeed(c.Context(), p), deedKey{}, to)
		next(huma.WithContext(c, ctx))
		if p.Closed || c.Status() < http.StatusBadRequest {
			return
		}
		p.Result = "refused: the request does not match the contract" // the operation did not begin
		_ = to.Record(ctx, p)                                         // it logs a failure
	}
}

// settled records the outcome of an operation. The caller gets the error of the operation, or that
// of a change which the audit lacks.
func settled(ctx context.Context, failed error) error {
	to, ok := ctx.Value(deedKey{}).(access.Auditor)
	p := access.DeedOf(ctx)
	if !ok || p == nil {
		return failed
	}
	p.Lock()
	p.Result = access.DeedDone
	if failed != nil {
		p.Result = failed.Error()
	}
	p.Unlock()
	if err := to.Record(ctx, p); err != nil && failed == nil {
		return fmt.Errorf("the request was carried out: %w", err)
	}
	return failed
}

// deedOf returns the visible parts of a request: its caller, its address, the object in its path.
func deedOf(c huma.Context) (d access.Deed) {
	d = caller(c.Context(), c.RemoteAddr(), c.Header)
	d.Verb = c.Operation().OperationID
	owner := pando.Tenant(c.Query("tenant"))
	if owner == "" {
		owner = pando.DefaultTenant
	}
	name := c.Param("name")
	for _, of := range []struct {
		param, kind, before string
		owner               pando.Tenant
	}{
		{"secret", "secret", "", owner}, {"token", "token", "", pando.Tenant(c.Param("tenant"))},
		{"volume", "volume", name + "/", owner}, {"snapshot", "snapshot", name + "/", owner},
		{"name", "service", "", owner}, {"host", "host", "", ""}, {"digest", "image", "", ""},
	} {
		if v := c.Param(of.param); v != "" {
			d.About(of.kind, of.owner, of.before+v)
			break
		}
	}
	if t := c.Param("tenant"); t != "" && d.Object == "" {
		d.Owner, d.Object = pando.Tenant(t), "tenant "+t
	}
	d.Detail = cmp.Or(c.Param("right"), c.Query("grant"))
	return d
}

// caller returns the part of a deed about its caller. header returns a header of the request.
func caller(ctx context.Context, address string, header func(string) string) (d access.Deed) {
	d.By = header(operatorHeader)
	if from, err := netip.ParseAddrPort(address); err == nil {
		d.From = from.Addr().Unmap().String()
	}
	if uid, ok := ctx.Value(userKey{}).(uint32); ok {
		d.From = fmt.Sprintf("uid %d", uid)
	}
	if m, member := callerOf(ctx); member {
		d.Source = "host " + string(m.Name)
		if uid := header(userHeader); isUser.MatchString(uid) {
			d.From += " " + uid
		}
	}
	if t, token := access.TokenOf(ctx); token {
		d.Source, d.Tenant = "token "+t.String(), t.Tenant
	}
	d.By = ownWord(d.By, d.Source)
	return d
}

// ownWord returns the caller's own word of the operator's header. Its door adds the proven part.
func ownWord(by, source string) string {
	kind, name, _ := strings.Cut(source, " ")
	switch {
	case kind == "token":
		return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(by, source), " ("), ")")
	case by == name:
		return ""
	}
	return strings.TrimSuffix(by, "@"+name)
}

// userKey is the key of the user of a unix socket in the context of a connection.
type userKey struct{}

// userHeader carries the user of a member's socket to the server.
const userHeader = "Pando-User"

var isUser = regexp.MustCompile(`^uid [0-9]{1,10}$`)

// FromUser returns the context of a connection from a process of this user.
func FromUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, userKey{}, uid)
}

// auditFace serves the requests about the audit.
type auditFace struct{ operators access.Operators }

// routes adds its operation.
func (h auditFace) routes(a huma.API) {
	route(a, "audit", "GET /v1/audit",
		"List the requests that changed something or reached into an instance, oldest first, each with "+
			"its caller and its outcome. A token of a tenant gets those of its tenant.", h.deeds)
}

// deeds returns the deeds for an operator, or those of its tenant for a token.
func (h auditFace) deeds(ctx context.Context, in *struct {
	Since  time.Time           `query:"since" doc:"only from this time on"`
	Source string              `query:"actor" maxLength:"100" doc:"a part of a caller's name"`
	Tenant pando.Tenant        `query:"tenant" doc:"only of this tenant and about its objects"`
	After  pando.StoreRevision `query:"after" minimum:"0" doc:"only those written after seen"`
	Max    int                 `query:"max" minimum:"0" doc:"the newest N (0 = all)"`
	Wait   float64             `query:"wait_seconds" minimum:"0" maximum:"8" doc:"wait for a deed"`
}) (*struct{ Body access.Audit }, error) {
	to, ok := behind(h.operators).(access.Auditor)
	if !ok {
		return nil, fmt.Errorf("%w: this server keeps no audit", pando.ErrUnsupported)
	}
	q := access.DeedQuery{Since: in.Since, Source: in.Source, Tenant: in.Tenant, After: in.After,
		Max: in.Max, Wait: pando.Seconds(in.Wait)}
	t, token := access.TokenOf(ctx)
	if token {
		if err := foreign(ctx, q.Tenant); err != nil && q.Tenant != "" {
			return nil, err
		}
		q.Tenant = t.Tenant
	}
	all, err := to.Deeds(ctx, q)
	for n := range all.Deeds {
		if token && all.Deeds[n].Tenant != t.Tenant {
			all.Deeds[n].From = "" // an address of the hosts
		}
	}
	return &struct{ Body access.Audit }{all}, err
}

// Audit returns the deeds that a query wants.
func Audit(ctx context.Context, c *Client, q access.DeedQuery) (access.Audit, error) {
	v := url.Values{"actor": {q.Source}, "tenant": {string(q.Tenant)}}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	v.Set("after", strconv.FormatInt(int64(q.After), 10))
	v.Set("max", strconv.Itoa(q.Max))
	v.Set("wait_seconds", strconv.FormatFloat(q.Wait.Seconds(), 'f', -1, 64))
	return call[access.Audit](ctx, c, http.MethodGet, "/v1/audit", v, nil)
}
