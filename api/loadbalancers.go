package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api/octavia"
)

// octaviaPrefixes are the paths of Octavia's API, of which the second is the older spelling.
var octaviaPrefixes = []string{"/v2.0/lbaas/", "/v2/lbaas/"}

// changing lists the methods of requests that change something.
var changing = []string{http.MethodPost, http.MethodPut, http.MethodDelete}

// OfOctavia reports whether a request is one of Octavia's API.
func OfOctavia(r *http.Request) bool {
	return slices.ContainsFunc(octaviaPrefixes, func(p string) bool {
		return strings.HasPrefix(r.URL.Path, p)
	})
}

// refuse answers a request with an error, in the format of its API.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if OfOctavia(r) {
		fault(w, err)
		return
	}
	fail(w, err, nil)
}

// fault answers with an error in the format of Octavia.
func fault(w http.ResponseWriter, err error) {
	p := problemOf(err, nil)
	code := "Client"
	if p.Status >= http.StatusInternalServerError {
		code = "Server"
	}
	w.Header().Set("Content-Type", "application/json")
	maps.Copy(w.Header(), p.GetHeaders())
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the caller may be gone
		"faultcode": code, "faultstring": p.Detail, "debuginfo": nil})
}

// loadBalancers serves OpenStack's API of load balancers (Octavia v2) over services. It keeps
// nothing: a spec has the whole load balancer.
type loadBalancers struct {
	operators access.Operators // within the rights of the caller
	behind    any              // for the audit
}

// collections are the lists of objects below a prefix.
var collections = map[string]octavia.Kind{
	"loadbalancers": octavia.LoadBalancerKind, "listeners": octavia.ListenerKind,
	"pools": octavia.PoolKind, "healthmonitors": octavia.MonitorKind,
}

// aspects are the last words of paths that read something of an object.
var aspects = map[octavia.Kind][]string{
	octavia.LoadBalancerKind: {"status", "statuses", "stats"}, octavia.ListenerKind: {"stats"},
}

// lbTarget is the object or the list that a path names.
type lbTarget struct {
	octavia.Edit
	key  octavia.Key // of the load balancer; zero for a list or a new object
	list bool
	of   string // the aspect of the object: status, statuses or stats. "": the object itself
}

// targetOf reads a path below a prefix.
func targetOf(path string) (t lbTarget, err error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	kind, known := collections[parts[0]]
	t.Kind, t.list = kind, len(parts) == 1
	switch n := len(parts); {
	case !known:
	case n == 1:
		return t, nil
	case n == 2:
		t.key, t.Number, err = octavia.ParseID(kind, parts[1])
		return t, err
	case n == 3 && slices.Contains(aspects[kind], parts[2]):
		t.of = parts[2]
		t.key, t.Number, err = octavia.ParseID(kind, parts[1])
		return t, err
	case (n == 3 || n == 4) && kind == octavia.PoolKind && parts[2] == "members":
		t.Kind, t.list = octavia.MemberKind, n == 3
		if t.key, t.Pool, err = octavia.ParseID(kind, parts[1]); err != nil || n == 3 {
			return t, err
		}
		key, number, err := octavia.ParseID(octavia.MemberKind, parts[3])
		if err == nil && key != t.key {
			err = fmt.Errorf("member %s of pool %s: %w", parts[3], parts[1], pando.ErrNotFound)
		}
		t.Number = number
		return t, err
	}
	return t, fmt.Errorf("the path %.80q: %w; want loadbalancers, listeners, pools, pools/ID/members "+
		"or healthmonitors", path, pando.ErrNotFound)
}

// ServeHTTP answers one request. The path lacks its prefix.
func (h loadBalancers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, err := targetOf(r.URL.Path)
	if err != nil {
		fault(w, err)
		return
	}
	if r.Method == http.MethodGet {
		body, err := h.get(r, t)
		h.answer(w, http.StatusOK, body, err)
		return
	}
	ctx := r.Context()
	if to, ok := h.behind.(access.Auditor); ok {
		p := &access.Pending{Deed: caller(ctx, r.RemoteAddr, r.Header.Get)}
		p.Verb = map[string]string{http.MethodPost: "create-", http.MethodPut: "update-",
			http.MethodDelete: "delete-"}[r.Method] + t.Kind.String()
		ctx = context.WithValue(access.WithDeed(ctx, p), deedKey{}, to)
	}
	status, body, err := h.change(ctx, r, t)
	h.answer(w, status, body, settled(ctx, err))
}

func (h loadBalancers) answer(w http.ResponseWriter, status int, body any, err error) {
	switch {
	case err != nil:
		fault(w, err)
	case body == nil:
		w.WriteHeader(status)
	default:
		answer(w, status, body)
	}
}

// get answers a request that reads.
func (h loadBalancers) get(r *http.Request, t lbTarget) (any, error) {
	if t.list {
		return h.list(r, t)
	}
	v, err := h.view(r.Context(), t.key)
	if err != nil {
		return nil, err
	}
	v.Behind = h.isBehind(r.Context(), v.Status)
	o, err := v.Find(t.Kind, t.Pool, t.Number)
	switch {
	case err != nil:
		return nil, err
	case t.of == "stats":
		o, err = h.stats(r.Context(), v)
		return map[string]any{"stats": o}, err
	case t.of != "":
		return map[string]any{"statuses": map[string]any{"loadbalancer": v.Tree()}}, nil
	}
	return map[string]any{t.Kind.String(): o}, nil
}

// lateSecondsMax bounds how long a host holds back ACTIVE. A host that the server cannot ask may
// steer well.
const lateSecondsMax = 30

// isBehind reports whether a host does not steer yet by the newest change of a service.
func (h loadBalancers) isBehind(ctx context.Context, st pando.ServiceStatus) bool {
	if st.Target != st.Current || st.Removing {
		return false
	}
	hosts, err := h.operators.Steering(ctx, []pando.ServiceKey{st.ServiceKey}, 0)
	return err == nil && slices.ContainsFunc(hosts, func(s pando.HostSteering) bool {
		return !s.Confirmed && s.WaitedSeconds < lateSecondsMax
	})
}

// stats returns the traffic of a load balancer.
func (h loadBalancers) stats(ctx context.Context, v octavia.View) (octavia.Object, error) {
	counters, err := h.operators.Counters(ctx, v.Status.ServiceKey)
	if err != nil {
		return nil, err
	}
	usage, err := h.operators.Stats(ctx, v.Status.ServiceKey)
	return octavia.Stats(counters, usage), err
}

// list answers a request for a list.
func (h loadBalancers) list(r *http.Request, t lbTarget) (any, error) {
	var all []octavia.Object
	if t.Kind == octavia.MemberKind {
		v, err := h.view(r.Context(), t.key)
		if err != nil {
			return nil, err
		}
		p, err := v.Document.Pool(t.Pool)
		if err != nil {
			return nil, err
		}
		all = v.Members(*p)
	} else {
		services, err := h.operators.Services(r.Context())
		if err != nil {
			return nil, err
		}
		for _, s := range services {
			if _, may := octavia.KeyOf(s.Name); !may {
				continue
			}
			st, err := h.operators.Service(r.Context(), s.ServiceKey)
			if errors.Is(err, pando.ErrNotFound) {
				continue // it went meanwhile
			}
			if err != nil {
				return nil, err
			}
			if v, ok := octavia.NewView(st); ok {
				all = append(all, v.Objects(t.Kind)...)
			}
		}
	}
	q := r.URL.Query()
	page, err := octavia.Choose(t.Kind, all, q)
	if err != nil {
		return nil, err
	}
	name := t.Kind.String() + "s"
	body := map[string]any{name: page.Objects}
	if page.Next != "" {
		q.Set("marker", page.Next)
		next := *r.URL
		next.Path, next.RawQuery = octaviaPrefixes[0]+strings.TrimPrefix(r.URL.Path, "/"), q.Encode()
		if next.Scheme, next.Host = "https", r.Host; r.TLS == nil {
			next.Scheme = "http"
		}
		body[name+"_links"] = []octavia.Object{{"rel": "next", "href": next.String()}}
	}
	return body, nil
}

// view returns a load balancer that the caller may see.
func (h loadBalancers) view(ctx context.Context, key octavia.Key) (v octavia.View, err error) {
	none := fmt.Errorf("load balancer %s: %w; GET /v2.0/lbaas/loadbalancers lists them",
		key.ID(octavia.LoadBalancerKind, 0), pando.ErrNotFound)
	s := pando.ServiceKey{Name: key.Service()}
	if t, ok := access.TokenOf(ctx); ok {
		s.Tenant = t.Tenant
	} else {
		all, err := h.operators.Services(ctx)
		if err == nil {
			s.Tenant, err = tenantOf(all, s.Name)
		}
		if err != nil {
			return v, err
		}
	}
	st, err := h.operators.Service(ctx, s)
	if errors.Is(err, pando.ErrNotFound) {
		return v, none
	}
	if err != nil {
		return v, err
	}
	v, ok := octavia.NewView(st)
	if !ok {
		return v, none
	}
	concerns(ctx, s)
	return v, nil
}

// tenantOf returns the tenant of a service that an operator names without one. The operators' own goes
// first: a tenant may give its service any name.
func tenantOf(all []pando.ServiceStatus, name pando.ServiceName) (t pando.Tenant, err error) {
	var of []string
	for _, st := range all {
		if st.Name != name {
			continue
		}
		if st.Tenant == pando.DefaultTenant {
			return st.Tenant, nil
		}
		t, of = st.Tenant, append(of, string(st.Tenant))
	}
	if len(of) > 1 {
		return "", fmt.Errorf("%w: the tenants %s have it, and this request names none; send it with the token "+
			"of one of them", pando.ErrConflict, strings.Join(of, ", "))
	}
	return t, nil
}

// concerns names the service of a request in the audit.
func concerns(ctx context.Context, s pando.ServiceKey) {
	if p := access.DeedOf(ctx); p != nil {
		p.About("service", s.Tenant, string(s.Name))
	}
}

// change answers a request that changes something.
func (h loadBalancers) change(
	ctx context.Context, r *http.Request, t lbTarget,
) (status int, body any, err error) {
	if t.Body, err = readBytes(r, bodyBytesMax); err != nil {
		return 0, nil, err
	}
	by := pando.Asker{Kind: pando.AskerOperator, Name: r.Header.Get(operatorHeader)}
	t.More = r.URL.Query().Get("additive_only") == "true"
	status = http.StatusOK
	var edit func(*octavia.Document) (uint64, error)
	switch {
	case t.of != "":
		return 0, nil, fmt.Errorf("%s %s: %w: want GET", r.Method, r.URL.Path, errMethod)
	case r.Method == http.MethodPost && t.list && t.Kind == octavia.LoadBalancerKind:
		body, err := h.create(ctx, t.Body, by)
		return http.StatusCreated, body, err
	case r.Method == http.MethodPost && t.list:
		if err := h.parent(&t); err != nil {
			return 0, nil, err
		}
		status, edit = http.StatusCreated, t.Create
	case r.Method == http.MethodPut && t.list && t.Kind == octavia.MemberKind:
		_, err := h.edit(ctx, t.key, t.Replace, by)
		return http.StatusAccepted, nil, err
	case r.Method == http.MethodPut && !t.list:
		edit = t.Update
	case r.Method == http.MethodDelete && !t.list && t.Kind == octavia.LoadBalancerKind:
		return http.StatusNoContent, nil, h.remove(ctx, t.key, r.URL.Query().Get("cascade"), by)
	case r.Method == http.MethodDelete && !t.list:
		_, err := h.edit(ctx, t.key, t.Delete, by)
		return http.StatusNoContent, nil, err
	default:
		return 0, nil, fmt.Errorf("%s %s: %w: want another", r.Method, r.URL.Path, errMethod)
	}
	n, err := h.edit(ctx, t.key, edit, by)
	if err != nil {
		return 0, nil, err
	}
	v, err := h.view(ctx, t.key)
	if err != nil {
		return 0, nil, err
	}
	o, err := v.Find(t.Kind, t.Pool, n)
	return status, map[string]any{t.Kind.String(): o}, err
}

// parent sets the load balancer and the pool of a new object, which its body names.
func (h loadBalancers) parent(t *lbTarget) error {
	if t.Kind == octavia.MemberKind {
		return nil // the path names its pool
	}
	r, err := octavia.Read(t.Kind, t.Body)
	if err != nil {
		return err
	}
	for _, of := range []struct {
		word string
		kind octavia.Kind
	}{{"loadbalancer_id", octavia.LoadBalancerKind}, {"listener_id", octavia.ListenerKind},
		{"pool_id", octavia.PoolKind}} {
		id := r.Text(of.word)
		if id == "" {
			continue
		}
		key, n, err := octavia.ParseID(of.kind, id)
		if err != nil {
			return err
		}
		t.key = key
		if of.kind == octavia.PoolKind {
			t.Pool = n
		}
		return nil
	}
	return fmt.Errorf("%w: %s: want loadbalancer_id, listener_id or pool_id", pando.ErrInvalid, t.Kind)
}

// create makes a load balancer.
func (h loadBalancers) create(ctx context.Context, body []byte, by pando.Asker) (any, error) {
	r, err := octavia.Read(octavia.LoadBalancerKind, body)
	if err != nil {
		return nil, err
	}
	owner := pando.DefaultTenant
	if t, ok := access.TokenOf(ctx); ok {
		owner = t.Tenant
	}
	for _, word := range []string{"project_id", "tenant_id"} {
		if asked := pando.Tenant(r.Text(word)); asked != "" {
			if err := foreign(ctx, asked); err != nil {
				return nil, err
			}
			owner = asked
		}
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("make an id: %w", err)
	}
	key := octavia.NewKey(random)
	d, err := octavia.Create(key, r)
	if err != nil {
		return nil, err
	}
	if err := h.deploy(ctx, owner, d, by); err != nil {
		return nil, err
	}
	v, err := h.view(ctx, key)
	return map[string]any{"loadbalancer": v.LoadBalancer()}, err
}

// deploy stores a load balancer as the spec of its service.
func (h loadBalancers) deploy(
	ctx context.Context, owner pando.Tenant, d octavia.Document, by pando.Asker,
) error {
	s, err := d.Spec(owner)
	if err != nil {
		return err
	}
	concerns(ctx, s.Key())
	_, err = h.operators.Deploy(ctx, s, by)
	return err
}

// editsMax is how often a change is tried on top of newer records.
const editsMax = 20

// edit changes a load balancer and returns the number of the changed object.
func (h loadBalancers) edit(
	ctx context.Context, key octavia.Key, change func(*octavia.Document) (uint64, error),
	by pando.Asker,
) (n uint64, err error) {
	for range editsMax {
		v, err := h.view(ctx, key)
		if err != nil {
			return 0, err
		}
		if v.Status.Removing {
			return 0, fmt.Errorf("%w: the load balancer is being deleted; wait until GET answers 404",
				pando.ErrConflict)
		}
		if n, err = change(&v.Document); err != nil {
			return 0, err
		}
		by.Seen = v.Status.Version
		err = h.deploy(ctx, v.Status.Tenant, v.Document, by)
		if err == nil || !errors.Is(err, pando.ErrConflict) || ctx.Err() != nil {
			return n, err
		}
	}
	return 0, fmt.Errorf("%w: others change the load balancer all the time; try again",
		pando.ErrBusy)
}

// remove deletes a load balancer. One with listeners or pools needs cascade.
func (h loadBalancers) remove(
	ctx context.Context, key octavia.Key, cascade string, by pando.Asker,
) error {
	v, err := h.view(ctx, key)
	if err != nil {
		return err
	}
	if len(v.Listeners)+len(v.Pools) > 0 && !strings.EqualFold(cascade, "true") {
		return fmt.Errorf("%w: the load balancer has %d listeners and %d pools: delete them first, or "+
			"add ?cascade=true", pando.ErrInvalid, len(v.Listeners), len(v.Pools))
	}
	s := pando.ServiceKey{Tenant: v.Status.Tenant, Name: key.Service()}
	return h.operators.Remove(ctx, s, false, by)
}
