package api

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"pando.run/pando"
	"pando.run/pando/access"
)

const metricsHead = `# The metrics

<!-- Made from api/metrics.go and api/hostmetrics.go by: go test ./api -update -->

Two endpoints, as Prometheus text or OpenMetrics. [The guide](../guides/metrics.md) says how to
scrape them. Names and labels stay; a new release may add some.

Both also have the ` + "`process_`" + ` metrics of the process that answers: memory, processor
time and open files.

"Series at most" bounds the number of series of one name. Services are at most 16,384, hosts 1,024,
tenants as many as have a record or a service, and kinds of decisions about 40. A series exists once
its event happened.

`

func TestTheMetricsReferenceIsTheCode(t *testing.T) {
	want := []byte(metricsHead + "## Of the cluster\n\n`GET /metrics`, on every host. A host " +
		"without a server forwards to one.\n\n" + ofCluster.reference() + "\n## Of a host\n\n`GET " +
		HostMetricsPath + "`, on every host. It needs no server.\n\n" + ofHost.reference())
	path := filepath.Join("..", "docs", "reference", "metrics.md")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stale (%v): make it again with `go test ./api -update`", path, err)
	}
}

// busy answers every question of a scrape.
type busy struct {
	access.Operators
	flows uint64
}

var shop = pando.ServiceKey{Tenant: "acme", Name: "shop"}

func (busy) Hosts(context.Context) ([]pando.HostStatus, error) {
	return []pando.HostStatus{
		{Host: pando.Host{Name: "h1", Version: "v1"}, State: pando.HostHere, Leads: true,
			Losses: &pando.Losses{Dropped: map[pando.DropReason]uint64{"no_flow": 7}, Evicted: 2}},
		{Host: pando.Host{Name: "h2"}, State: pando.HostHere},
		{Host: pando.Host{Name: "h3"}, State: pando.HostAway},
	}, nil
}

func (busy) Services(context.Context) ([]pando.ServiceStatus, error) {
	var st pando.ServiceStatus
	st.ServiceKey, st.Phase, st.Scale.Max = shop, pando.ServiceServing, 6
	st.Instances = []pando.InstanceStatus{
		{Instance: pando.Instance{ID: "a", Phase: pando.PhaseInRotation}},
		{Instance: pando.Instance{ID: "b", Phase: pando.PhaseInRotation}},
	}
	return []pando.ServiceStatus{st}, nil
}

// Counters answers the counts of two hosts about the same instance.
func (b *busy) Counters(
	context.Context, pando.ServiceKey,
) ([]pando.EndpointCounters, error) {
	b.flows += 5
	return []pando.EndpointCounters{
		{Service: shop, Instance: "a", Host: "h1", Flows: b.flows},
		{Service: shop, Instance: "a", Host: "h2", Flows: 2 * b.flows},
	}, nil
}

func (busy) Tenants(context.Context) ([]access.TenantStatus, error) {
	return []access.TenantStatus{{
		Account: access.Account{Tenant: "acme", Quota: access.Quota{CPUs: 8}},
		Use:     access.TenantUse{CPUs: 2.5, Instances: 2},
	}}, nil
}

func (busy) Figures(context.Context) (pando.ServerFigures, error) {
	return pando.ServerFigures{Leads: true, Written: 11, Failed: 3,
		Store:     pando.StoreFigures{FileBytes: 9, UsedBytes: 8, LimitBytes: 100},
		Decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{shop: {"deploy": 4}}}, nil
}

func (busy) State() http.Handler { return http.NotFoundHandler() }

func scraped(t *testing.T, h http.Handler, path, accept string) string {
	t.Helper()
	r := httptest.NewRequest("GET", path, http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

func wants(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+text, "\n"+l+"\n") {
			t.Errorf("no line %s in\n%s", l, text)
		}
	}
}

// Several hosts count the flows to one instance. Their counters add up and never collide.
func TestAScrapeOfTheCluster(t *testing.T) {
	h := OperatorsHandler(&busy{}, func(context.Context) error { return nil })
	scraped(t, h, "/metrics", "")
	text := scraped(t, h, "/metrics", "")
	wants(t, text, `pando_flows_total{service="shop",tenant="acme"} 15`,
		`pando_instances{phase="in rotation",service="shop",tenant="acme"} 2`,
		`pando_instances_max{service="shop",tenant="acme"} 6`,
		`pando_host_here{host="h1"} 1`, `pando_host_here{host="h3"} 0`,
		`pando_host_answers{host="h1"} 1`, `pando_host_answers{host="h2"} 0`,
		`pando_leader{host="h1"} 1`, `pando_dropped_packets_total{host="h1",reason="no_flow"} 7`,
		`pando_tenant_use{resource="cpus",tenant="acme"} 2.5`,
		`pando_tenant_quota{resource="cpus",tenant="acme"} 8`,
		`pando_store_writes_total{result="failed"} 3`, `pando_store_bytes{of="limit"} 100`,
		`pando_decisions_total{kind="deploy",service="shop",tenant="acme"} 4`,
		`pando_server_leads 1`, `pando_api_answers_total{method="GET",status="200"} 1`)
	if strings.Contains(text, `resource="instances",tenant="acme"} 0`) {
		t.Error("a missing quota has a value")
	}
	if !strings.Contains(text, "process_resident_memory_bytes ") {
		t.Error("no metrics of the process")
	}
	open := scraped(t, h, "/metrics", "application/openmetrics-text; version=1.0.0")
	if !strings.HasSuffix(open, "# EOF\n") {
		t.Errorf("OpenMetrics ends with %q", open[max(0, len(open)-20):])
	}
}

// mute has no answer about its hosts.
type mute struct{ busy }

func (mute) Hosts(context.Context) ([]pando.HostStatus, error) { return nil, pando.ErrUnavailable }

func TestAFailedPartLeavesTheOthers(t *testing.T) {
	h := OperatorsHandler(&mute{}, func(context.Context) error { return nil })
	text := scraped(t, h, "/metrics", "")
	wants(t, text, `pando_instances_max{service="shop",tenant="acme"} 6`)
	if strings.Contains(text, "pando_host_here") {
		t.Error("a host without an answer")
	}
}

type agent struct{}

func (agent) HostFigures(context.Context) (pando.HostFigures, error) {
	return pando.HostFigures{
		Host: "h1", Version: "v1", LeasesLost: 2, Merges: 5, MergesFailed: 1, Shares: 128,
		Steering: pando.SteeringFigures{Published: 9, Failed: 1, Failing: 1},
		Instances: []pando.InstanceUsage{
			{Instance: "a", Service: shop, CPUSeconds: 1.5, MemoryBytes: new(int64(4096)), PIDs: new(int64(3)),
				Metrics: map[string]float64{"queue \"x\"\n": 12}, Score: &pando.Score{Value: 0.25},
				Queue: &pando.LinkQueue{BacklogBytes: 3000, Drops: 6},
				Meter: &pando.Meter{Stall: 0.125, Loss: 0.5, RTTSeconds: 0.002}},
			{Instance: "b", Service: shop, Missing: "it ended"},
		},
		Uplinks: map[string]pando.LinkQueue{"eth0": {BacklogBytes: 500, Drops: 8}},
		Losses:  pando.Losses{Dropped: map[pando.DropReason]uint64{"spoofed": 4}},
	}, nil
}

func TestAScrapeOfAHost(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) })
	h := WithHostMetrics(next, HostMetrics(agent{}))
	of := `{instance="a",service="shop",tenant="acme"}`
	text := scraped(t, h, HostMetricsPath, "")
	wants(t, text, "pando_agent_instances 2", "pando_instance_cpu_seconds_total"+of+" 1.5",
		"pando_instance_memory_bytes"+of+" 4096", "pando_instance_score"+of+" 0.25",
		"pando_instance_stall_ratio"+of+" 0.125", "pando_instance_resent_ratio"+of+" 0.5",
		"pando_instance_rtt_seconds"+of+" 0.002",
		"pando_instance_queue_bytes"+of+" 3000", "pando_instance_queue_drops_total"+of+" 6",
		`pando_agent_uplink_queue_bytes{device="eth0"} 500`,
		`pando_agent_uplink_queue_drops_total{device="eth0"} 8`,
		`pando_instance_metric{instance="a",name="queue \"x\"\n",service="shop",tenant="acme"} 12`,
		`pando_agent_publishes_total{result="failed"} 1`, "pando_agent_publishes_failing 1",
		"pando_agent_leases_lost_total 2", "pando_agent_vip_shares 128",
		`pando_agent_merges_total{result="merged"} 5`,
		`pando_agent_dropped_packets_total{reason="spoofed"} 4`)
	if strings.Contains(text, `instance="b"`) {
		t.Error("an instance that ended has a use")
	}
	if got := scraped(t, h, "/v1/services", ""); got != "" {
		t.Errorf("another path answers %q", got)
	}
}

// The names follow the conventions of Prometheus.
func TestNamesOfMetrics(t *testing.T) {
	for _, m := range append(ofCluster.all, ofHost.all...) {
		if !strings.HasSuffix(m.help, ".") || m.bound == "" {
			t.Errorf("%s: no sentence or no bound: %q %q", m.name, m.help, m.bound)
		}
		if (m.kind == prometheus.CounterValue) != strings.HasSuffix(m.name, "_total") {
			t.Errorf("%s: a counter ends with _total, and nothing else", m.name)
		}
	}
	h := OperatorsHandler(&busy{}, nil)
	found, err := promlint.New(strings.NewReader(scraped(t, h, "/metrics", ""))).Lint()
	for _, p := range found {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
}

const rules = "../deploy/prometheus/"

// Every name in the ready-made alerts is one that Pando has, and promtool runs each alert.
func TestTheAlertsFire(t *testing.T) {
	text, err := os.ReadFile(rules + "pando.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range append(ofCluster.all, ofHost.all...) {
		known[m.name] = true
	}
	for _, name := range regexp.MustCompile(`\bpando_\w+`).FindAllString(string(text), -1) {
		if !known[name] {
			t.Errorf("the alerts name %s, which Pando does not have", name)
		}
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is not installed: deploy/deps test")
	}
	for _, args := range [][]string{{"check", "rules", "pando.rules.yaml"},
		{"test", "rules", "pando.rules.test.yaml"}} {
		c := exec.CommandContext(t.Context(), "promtool", args...)
		c.Dir = rules
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
