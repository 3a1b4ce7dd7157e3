package api

import (
	"context"
	"net/http"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"pando.run/pando"
	"pando.run/pando/access"
)

// metrics answers scrapes from the operators' API at that moment. It keeps sums of counters that
// would fall with their instances (tally.go).
func (h operators) metrics() http.Handler {
	sums := &tally{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scrape(w, r, gauges{r.Context(), h.operators, sums, h.answers})
	})
}

// gauges reads the cluster for one scrape.
type gauges struct {
	ctx       context.Context
	operators access.Operators
	sums      *tally
	answers   *answers
}

var (
	ofCluster metrics

	metricHosts = ofCluster.gauge("pando_host_info", "hosts",
		"Always 1; the build of a host with its lease is a label.", "host version")
	metricHere = ofCluster.gauge("pando_host_here", "hosts",
		"1 if the agent of a member holds its lease, else 0.", "host")
	metricAnswers = ofCluster.gauge("pando_host_answers", "hosts",
		"1 if the agent of a host answered this scrape, else 0.", "host")
	metricOn  = ofCluster.gauge("pando_host_instances", "hosts", "Instances placed on a host.", "host")
	metricCut = ofCluster.gauge("pando_host_unreached", "hosts",
		"1 if a host has no way to another one, so that other one gets no new flows from it.", "host")
	metricDropped = ofCluster.counter("pando_dropped_packets_total", "11 × hosts",
		"Packets that the steering of a host dropped, by reason.", "host reason")
	metricAnswered = ofCluster.counter("pando_answered_drops_total", "hosts",
		"Dropped packets that were answered with an error.", "host")
	metricEvicted = ofCluster.counter("pando_evicted_flows_total", "hosts",
		"Flows that a full connection table gave up.", "host")
	metricForged = ofCluster.counter("pando_forged_probes_total", "hosts",
		"Probes between hosts that no member sent.", "host")
	metricLeader = ofCluster.gauge("pando_leader", "1",
		"Always 1; the host of the deciding server is a label.", "host")

	metricServices = ofCluster.gauge("pando_service_info", "services",
		"Always 1; the phase of a service is a label.", "tenant service phase")
	metricInstances = ofCluster.gauge("pando_instances", "10 × services", "Instances by phase.",
		"tenant service phase")
	metricMax = ofCluster.gauge("pando_instances_max", "services", "The budget of a service.",
		"tenant service")
	metricFlows = ofCluster.counter("pando_flows_total", "services",
		"New flows that all hosts steered to a service, since the first scrape.", "tenant service")
	metricPackets = ofCluster.counter("pando_packets_total", "services",
		"Packets that all hosts steered to a service, likewise.", "tenant service")
	metricBytes = ofCluster.counter("pando_bytes_total", "services",
		"Bytes that all hosts steered to a service, likewise.", "tenant service")
	metricDecisions = ofCluster.counter("pando_decisions_total", "kinds × services",
		"Decisions about a service by kind, since the server started.", "tenant service kind")

	metricTenantUse = ofCluster.gauge("pando_tenant_use", "4 × tenants",
		"Use of a tenant: services, instances, cpus, memory_bytes.", "tenant resource")
	metricTenantQuota = ofCluster.gauge("pando_tenant_quota", "4 × tenants",
		"Quota of a tenant, if it has one.", "tenant resource")

	metricBilled = ofCluster.counter("pando_tenant_billed_total", "5 × tenants",
		"Billed work: instance_seconds, cpu_seconds, bytes_in, bytes_out, decisions.", "tenant meter")

	metricLeads = ofCluster.gauge("pando_server_leads", "1",
		"1 if the server that answers decides for the cluster, else 0.", "")
	metricTerms = ofCluster.counter("pando_server_terms_total", "1",
		"How often this server began to lead.", "")
	metricTermsLost = ofCluster.counter("pando_server_terms_lost_total", "1",
		"How often this server lost the leadership.", "")
	metricWrites = ofCluster.counter("pando_store_writes_total", "3",
		"Writes of this server to the store: written, conflict, failed.", "result")
	metricStore = ofCluster.gauge("pando_store_bytes", "3",
		"Sizes of the store: file, used, limit.", "of")
	metricAPI = ofCluster.counter("pando_api_answers_total", "5 × 20",
		"Answers of the operators' API, by method and status.", "method status")
	metricLog = ofCluster.counter("pando_server_log_lines_total", "2",
		"Lines of the server's log: warning, error.", "level")
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) { ofCluster.describe(to) }

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	s := sample(to)
	g.hosts(s)
	g.services(s)
	g.tenants(s)
	g.bills(s)
	g.server(s)
	g.answers.each(func(method string, status int, n uint64) {
		s.put(metricAPI, float64(n), method, strconv.Itoa(status))
	})
}

func (g gauges) hosts(s sample) {
	hosts, err := g.operators.Hosts(g.ctx)
	if err != nil {
		s.failed(metricHosts, err)
	}
	for _, h := range hosts {
		name := string(h.Name)
		s.put(metricHere, is(h.State != pando.HostAway), name)
		s.put(metricOn, float64(h.Instances), name)
		if h.Leads {
			s.put(metricLeader, 1, name)
		}
		if h.State == pando.HostAway {
			continue
		}
		s.put(metricHosts, 1, name, h.Version)
		s.put(metricAnswers, is(h.Losses != nil), name)
		if h.Losses == nil {
			continue
		}
		for why, n := range h.Losses.Dropped {
			s.put(metricDropped, float64(n), name, string(why))
		}
		s.put(metricAnswered, float64(h.Losses.Answered), name)
		s.put(metricEvicted, float64(h.Losses.Evicted), name)
		s.put(metricForged, float64(h.Losses.Forged), name)
		s.put(metricCut, is(h.Losses.Unreached != "" || h.Losses.Cut != ""), name)
	}
}

func (g gauges) services(s sample) {
	services, err := g.operators.Services(g.ctx)
	if err != nil {
		s.failed(metricServices, err)
	}
	var keys []pando.ServiceKey
	var counters []pando.EndpointCounters
	for _, st := range services {
		of := []string{string(st.Tenant), string(st.Name)}
		s.put(metricServices, 1, append(of, string(st.Phase))...)
		s.put(metricMax, float64(st.Scale.Max), of...)
		phases := map[pando.Phase]int{}
		for _, i := range st.Instances {
			phases[i.Phase]++
		}
		for p, n := range phases {
			s.put(metricInstances, float64(n), append(of, string(p))...)
		}
		keys = append(keys, st.ServiceKey)
		if some, err := g.operators.Counters(g.ctx, st.ServiceKey); err == nil {
			counters = append(counters, some...)
		} // else the service is gone: the others count
	}
	for k, sum := range g.sums.add(keys, counters) {
		of := []string{string(k.Tenant), string(k.Name)}
		s.put(metricFlows, float64(sum.flows), of...)
		s.put(metricPackets, float64(sum.packets), of...)
		s.put(metricBytes, float64(sum.bytes), of...)
	}
}

func (g gauges) tenants(s sample) {
	all, err := g.operators.Tenants(g.ctx)
	if err != nil {
		s.failed(metricTenantUse, err)
	}
	for _, t := range all {
		name := string(t.Tenant)
		s.put(metricTenantUse, float64(t.Use.Services), name, "services")
		for _, r := range []struct {
			resource   string
			use, quota float64
		}{
			{"instances", float64(t.Use.Instances), float64(t.Quota.Instances)},
			{"cpus", t.Use.CPUs, t.Quota.CPUs},
			{"memory_bytes", float64(t.Use.MemoryBytes), float64(t.Quota.MemoryBytes)},
			{"disk_bytes", float64(t.Use.DiskBytes), float64(t.Quota.DiskBytes)},
		} {
			s.put(metricTenantUse, r.use, name, r.resource)
			if r.quota > 0 {
				s.put(metricTenantQuota, r.quota, name, r.resource)
			}
		}
	}
}

func (g gauges) server(s sample) {
	f, err := g.operators.Figures(g.ctx)
	if err != nil {
		s.failed(metricLeads, err)
		return
	}
	s.put(metricLeads, is(f.Leads))
	s.put(metricTerms, float64(f.Terms))
	s.put(metricTermsLost, float64(f.Lost))
	s.put(metricWrites, float64(f.Written), "written")
	s.put(metricWrites, float64(f.Conflicts), "conflict")
	s.put(metricWrites, float64(f.Failed), "failed")
	if f.Store.LimitBytes > 0 {
		s.put(metricStore, float64(f.Store.FileBytes), "file")
		s.put(metricStore, float64(f.Store.UsedBytes), "used")
		s.put(metricStore, float64(f.Store.LimitBytes), "limit")
	}
	s.put(metricLog, float64(f.Log.Warnings), "warning")
	s.put(metricLog, float64(f.Log.Errors), "error")
	for k, kinds := range f.Decisions {
		for kind, n := range kinds {
			s.put(metricDecisions, float64(n), string(k.Tenant), string(k.Name), string(kind))
		}
	}
}

// answers counts the answers of an API. Other methods than the usual ones count as one.
type answers struct {
	mu sync.Mutex
	of map[answerOf]uint64
}

type answerOf struct {
	method string
	status int
}

func newAnswers() *answers { return &answers{of: map[answerOf]uint64{}} }

func (a *answers) each(f func(method string, status int, n uint64)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for of, n := range a.of {
		f(of.method, of.status, n)
	}
}

// counted counts the answers of a handler.
func (a *answers) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		switch method {
		case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		default:
			method = "other"
		}
		seen := &watched{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.of[answerOf{method, seen.status}]++
		}()
		next.ServeHTTP(seen, r)
	})
}

// watched is the writer of an answer. It remembers the status.
type watched struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets an http.ResponseController reach the connection.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
