package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/monitors"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api/octavia"
)

// storing keeps the newest spec of each service, as control does. Each deed is recorded.
type storing struct {
	access.Operators
	mu    sync.Mutex
	kept  map[pando.ServiceKey]pando.ServiceStatus
	deeds []access.Deed
	race  int // so many deploys find that the service has changed
	hosts []pando.HostSteering
}

func (s *storing) Deploy(
	_ context.Context, spec pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec = spec.WithDefaults()
	st := s.kept[spec.Key()]
	if s.race > 0 {
		s.race--
		return st, pando.ErrConflict
	}
	if by.Seen != 0 && by.Seen != st.Version {
		return st, pando.ErrConflict
	}
	st.ServiceKey, st.Spec, st.VIP = spec.Key(), &spec, "10.128.0.1"
	st.Version++
	s.kept[spec.Key()] = st
	return st, nil
}

func (s *storing) Service(
	_ context.Context, k pando.ServiceKey,
) (pando.ServiceStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.kept[k]
	if !ok {
		return st, pando.ErrNotFound
	}
	return st, nil
}

func (s *storing) Services(context.Context) (out []pando.ServiceStatus, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.kept {
		st.Spec = nil // a list has none
		out = append(out, st)
	}
	return out, nil
}

func (s *storing) Counters(
	_ context.Context, k pando.ServiceKey,
) ([]pando.EndpointCounters, error) {
	one := pando.EndpointCounters{Service: k, Instance: "1", Host: "h", Flows: 3, Bytes: 300, Open: 2}
	return []pando.EndpointCounters{one}, nil
}

func (s *storing) Stats(_ context.Context, k pando.ServiceKey) ([]pando.InstanceUsage, error) {
	return []pando.InstanceUsage{{Service: k, Instance: "1", Host: "h", BytesOut: 1000}}, nil
}

func (s *storing) Steering(
	context.Context, []pando.ServiceKey, time.Duration,
) ([]pando.HostSteering, error) {
	return s.hosts, nil
}

func (s *storing) Remove(_ context.Context, k pando.ServiceKey, _ bool, _ pando.Asker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, k)
	return nil
}

func (s *storing) Record(_ context.Context, p *access.Pending) error {
	s.deeds = append(s.deeds, p.Deed)
	return nil
}

func (*storing) Deeds(context.Context, access.DeedQuery) (a access.Audit, _ error) { return a, nil }

func (*storing) State() http.Handler { return http.NotFoundHandler() }

// door serves the API of load balancers to a token of the tenant acme.
func door(t *testing.T, rights ...access.TokenRight) (*storing, *httptest.Server) {
	ops := &storing{kept: map[pando.ServiceKey]pando.ServiceStatus{}}
	h := ForTenants(OperatorsHandler(ops, nil), holds(rights...), func(*http.Request, error) {})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return ops, s
}

func ptr[T any](v T) *T { return &v }

// The library of OpenStack's clients makes, reads, changes and deletes each object.
func TestAClientOfOpenStack(t *testing.T) {
	ops, s := door(t, access.TokenDeploy, access.TokenHost)
	ctx := t.Context()
	c := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "t"},
		Endpoint:       s.URL + "/", ResourceBase: s.URL + "/v2.0/"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lb, err := loadbalancers.Create(ctx, c, loadbalancers.CreateOpts{Name: "web", VipSubnetID: "any",
		ProjectID: "acme", Tags: []string{"a"}}).Extract()
	must(err)
	l, err := listeners.Create(ctx, c, listeners.CreateOpts{LoadbalancerID: lb.ID, Protocol: "TCP",
		ProtocolPort: 80, TimeoutClientData: ptr(5000)}).Extract()
	must(err)
	p, err := pools.Create(ctx, c, pools.CreateOpts{ListenerID: l.ID, Protocol: "TCP",
		LBMethod: "ROUND_ROBIN"}).Extract()
	must(err)
	m, err := pools.CreateMember(ctx, c, p.ID, pools.CreateMemberOpts{Address: "192.0.2.7",
		ProtocolPort: 8080, Weight: ptr(2)}).Extract()
	must(err)
	ops.race = 2
	must(pools.BatchUpdateMembers(ctx, c, p.ID, []pools.BatchUpdateMemberOpts{
		{Address: "192.0.2.7", ProtocolPort: 8080, Weight: ptr(2)},
		{Address: "192.0.2.8", ProtocolPort: 8080, Weight: ptr(5)}}).ExtractErr())
	hm, err := monitors.Create(ctx, c, monitors.CreateOpts{PoolID: p.ID, Type: "HTTP", Delay: 5,
		Timeout: 2, MaxRetries: 3, URLPath: "/ok", ExpectedCodes: "200"}).Extract()
	must(err)
	name := loadbalancers.UpdateOpts{Name: ptr("shop")}
	lb, err = loadbalancers.Update(ctx, c, lb.ID, name).Extract()
	must(err)
	if lb.Name != "shop" || lb.VipSubnetID != "any" || lb.VipAddress == "" || len(lb.Listeners) != 1 ||
		len(lb.Pools) != 1 || lb.ProjectID != "acme" || !slices.Equal(lb.Tags, []string{"a"}) {
		t.Errorf("the load balancer is %+v", lb)
	}
	page, err := pools.ListMembers(c, p.ID, pools.ListMembersOpts{Limit: 1}).AllPages(ctx)
	must(err)
	all, err := pools.ExtractMembers(page)
	must(err)
	if len(all) != 2 || all[0].ID != m.ID || all[1].Weight != 5 {
		t.Errorf("the members are %+v", all)
	}
	for _, st := range ops.kept {
		if want := "[192.0.2.7 weight 2 192.0.2.8 weight 5] http"; fmt.Sprint(st.Spec.Endpoints, " ",
			st.Spec.Health.Live.Kind) != want || st.Tenant != "acme" {
			t.Errorf("the spec is %+v, want %s", st.Spec, want)
		}
	}
	counts(t, c, lb.ID, l.ID)
	must(monitors.Delete(ctx, c, hm.ID).ExtractErr())
	must(pools.DeleteMember(ctx, c, p.ID, m.ID).ExtractErr())
	deleted(t, c, lb.ID)
	hasDeeds(t, ops.deeds)
}

// counts reads the statistics of a load balancer and of its listener.
func counts(t *testing.T, c *gophercloud.ServiceClient, lb, listener string) {
	t.Helper()
	want := loadbalancers.Stats{BytesIn: 300, BytesOut: 700, ActiveConnections: 2, TotalConnections: 3}
	whole, err := loadbalancers.GetStats(t.Context(), c, lb).Extract()
	if err != nil || *whole != want {
		t.Errorf("the statistics are %+v, %v", whole, err)
	}
	one, err := listeners.GetStats(t.Context(), c, listener).Extract()
	if err != nil || loadbalancers.Stats(*one) != want {
		t.Errorf("the statistics of the listener are %+v, %v", one, err)
	}
}

// deleted deletes a load balancer with its objects.
func deleted(t *testing.T, c *gophercloud.ServiceClient, id string) {
	ctx := t.Context()
	err := loadbalancers.Delete(ctx, c, id, nil).ExtractErr()
	if !gophercloud.ResponseCodeIs(err, http.StatusBadRequest) {
		t.Errorf("a load balancer with objects is deleted: %v", err)
	}
	cascade := loadbalancers.DeleteOpts{Cascade: true}
	if err := loadbalancers.Delete(ctx, c, id, cascade).ExtractErr(); err != nil {
		t.Error(err)
	}
	_, err = loadbalancers.Get(ctx, c, id).Extract()
	if !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		t.Errorf("a deleted load balancer: %v", err)
	}
}

// hasDeeds looks for the changes of the client in the audit.
func hasDeeds(t *testing.T, deeds []access.Deed) {
	verbs := map[string]int{}
	for _, d := range deeds {
		verbs[d.Verb]++
		if d.Source != "token acme/ci" || !strings.HasPrefix(d.Object, "service acme/lb-") {
			t.Errorf("the audit has %+v", d)
		}
	}
	if want := "map[create-healthmonitor:1 create-listener:1 create-loadbalancer:1 create-member:1 " +
		"create-pool:1 delete-healthmonitor:1 delete-loadbalancer:2 delete-member:1 " +
		"update-loadbalancer:1 update-member:1]"; fmt.Sprint(verbs) != want {
		t.Errorf("the audit has %v, want %s", verbs, want)
	}
}

// create is the body of Octavia's reference for a new load balancer, with the words that Pando has.
const create = `{"loadbalancer": {"description": "My favorite load balancer",
	"admin_state_up": true, "project_id": "acme", "flavor_id": null,
	"vip_subnet_id": "d4af86e1-0051-488c-b7a0-527f97490c9a", "provider": "octavia",
	"name": "best_load_balancer", "additional_vips": [], "tags": ["test_tag"]}}`

// Each request answers with the status and the format of Octavia.
func TestRequestsOfOctavia(t *testing.T) {
	ops, s := door(t, access.TokenDeploy, access.TokenHost)
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		b, err := readBytes(&http.Request{Body: w.Body}, bodyBytesMax)
		if err != nil {
			t.Fatal(err)
		}
		return w.StatusCode, string(b)
	}
	if code, body := ask("POST", "/v2/lbaas/loadbalancers", create); code != http.StatusCreated ||
		!strings.Contains(body, `"description":"My favorite load balancer"`) {
		t.Errorf("%d %s", code, body)
	}
	unknown := octavia.NewKey([8]byte{}).ID(octavia.PoolKind, 1)
	path := "/v2/lbaas/loadbalancers/"
	for k := range ops.kept {
		key, _ := octavia.KeyOf(k.Name)
		path += key.ID(octavia.LoadBalancerKind, 0)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"GET", "/v2.0/lbaas/loadbalancers?name=best_load_balancer", "", 200, `"tags":["test_tag"]`},
		{"GET", "/v2.0/lbaas/loadbalancers?name=other", "", 200, `{"loadbalancers":[]}`},
		{"GET", "/v2.0/lbaas/healthmonitors", "", 200, `{"healthmonitors":[]}`},
		{"GET", "/v2.0/lbaas/pools/" + unknown, "", 404, `"faultcode":"Client"`},
		{"GET", "/v2.0/lbaas/pools/" + unknown + "/members", "", 404, `"debuginfo":null`},
		{"DELETE", path + "/status", "", 405, "want GET"},
		{"PUT", path + "/stats", "{}", 405, "want GET"},
		{"GET", path + "/status", "", 200, `"listeners":[]`},
		{"GET", path + "/stats", "", 200, `"total_connections":3`},
		{"GET", path + "/amphorae", "", 404, "want loadbalancers"},
		{"GET", "/v2.0/lbaas/listeners/" + unknown + "/stats", "", 404, "faultstring"},
		{"GET", "/v2.0/lbaas/l7policies", "", 404, "want loadbalancers, listeners"},
		{"PATCH", "/v2.0/lbaas/pools/" + unknown, "", 403, "faultstring"},
		{"PUT", "/v2.0/lbaas/pools", "", 405, "method not allowed"},
		{"POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer": {"project_id": "beta"}}`, 403,
			"not of beta"},
		{"POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer": {"vip_address": "203.0.113.50"}}`, 501,
			"loadbalancer.vip_address"},
		{"POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer"`, 400, "the body"},
		{"POST", "/v2.0/lbaas/listeners", `{"listener": {"protocol": "TCP"}}`, 400,
			"want loadbalancer_id"},
		{"POST", "/v2.0/lbaas/healthmonitors", `{"healthmonitor": {"pool_id": "` + unknown + `"}}`, 404,
			"faultstring"},
	} {
		if code, body := ask(c.method, c.path, c.body); code != c.code ||
			!strings.Contains(body, c.text) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, code, body, c.code, c.text)
		}
	}
}

// A token without rights reads, and changes nothing.
func TestRightsOfLoadBalancers(t *testing.T) {
	for _, c := range []struct {
		may  []access.TokenRight
		code int
		text string
	}{
		{nil, http.StatusForbidden, "may not deploy"},
		{[]access.TokenRight{access.TokenDeploy}, http.StatusForbidden, "may not host"},
		{[]access.TokenRight{access.TokenDeploy, access.TokenHost}, http.StatusCreated, "loadbalancer"},
	} {
		_, s := door(t, c.may...)
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, httptest.NewRequest("POST", "/v2.0/lbaas/loadbalancers",
			strings.NewReader(create)))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%v: %d %s", c.may, w.Code, w.Body)
		}
		if got := do(s.Config.Handler, "GET", "/v2.0/lbaas/loadbalancers", nil); got != http.StatusOK {
			t.Errorf("%v: a list answers %d", c.may, got)
		}
	}
}

// A load balancer is ACTIVE once every host steers it. A host that the server cannot ask delays it
// for a while.
func TestAHostThatDoesNotSteerYetHoldsBackActive(t *testing.T) {
	ops, s := door(t, access.TokenDeploy, access.TokenHost)
	var made struct{ LoadBalancer struct{ ID string } }
	w := httptest.NewRecorder()
	s.Config.Handler.ServeHTTP(w, httptest.NewRequest("POST", "/v2.0/lbaas/loadbalancers",
		strings.NewReader(`{"loadbalancer": {"name": "web"}}`)))
	if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil {
		t.Fatal(err)
	}
	for k, st := range ops.kept { // its rollout is over
		st.Current, st.Target = 1, 1
		ops.kept[k] = st
	}
	h1 := pando.HostSteering{Host: "h1", Confirmed: true}
	for want, hosts := range map[string][]pando.HostSteering{
		`"ACTIVE"`:                       {h1, {Host: "h2", Confirmed: true}},
		`"PENDING_UPDATE"`:               {h1, {Host: "h2", WaitedSeconds: 1}},
		`"provisioning_status":"ACTIVE"`: {h1, {Host: "h2", WaitedSeconds: lateSecondsMax}},
	} {
		ops.hosts = hosts
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, httptest.NewRequest("GET",
			"/v2.0/lbaas/loadbalancers/"+made.LoadBalancer.ID, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("with %+v: %s, want %s", hosts, w.Body, want)
		}
	}
}

// A tenant may give its service the name of another tenant's load balancer. A request of an operator
// then reaches neither by chance.
func TestAnOperatorReachesNoLoadBalancerByTheNameAlone(t *testing.T) {
	of := func(tenants ...pando.Tenant) (all []pando.ServiceStatus) {
		for _, t := range tenants {
			st := pando.ServiceStatus{}
			st.ServiceKey = pando.ServiceKey{Tenant: t, Name: "lb-1"}
			all = append(all, st)
		}
		return all
	}
	for _, c := range []struct {
		all  []pando.ServiceStatus
		want pando.Tenant
		err  error
	}{
		{of("acme"), "acme", nil},
		{of("acme", pando.DefaultTenant, "bank"), pando.DefaultTenant, nil},
		{of("acme", "bank"), "", pando.ErrConflict},
		{nil, "", nil},
	} {
		if got, err := tenantOf(c.all, "lb-1"); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("of %v: %q, %v", c.all, got, err)
		}
	}
}
