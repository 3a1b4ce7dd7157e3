package api

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pando.run/pando"
)

// metrics answers scrapes from the operators' API at that moment and keeps no counters of its own.
func (h operators) metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(gauges{r.Context(), h.Operators})
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// gauges reads the cluster for one scrape.
type gauges struct {
	ctx context.Context
	pando.Operators
}

var (
	ofService  = []string{"tenant", "service"}
	ofEndpoint = []string{"tenant", "service", "instance"}
	ofHost     = []string{"host"}

	metricServices = prometheus.NewDesc("pando_service_info",
		"Always 1; the phase of a service is a label.", append(ofService, "phase"), nil)
	metricInstances = prometheus.NewDesc("pando_instances", "Instances by phase.",
		append(ofService, "phase"), nil)
	metricMax = prometheus.NewDesc("pando_instances_max", "The budget of a service.", ofService,
		nil)
	metricDecisions = prometheus.NewDesc("pando_decisions",
		"Decisions that the service still remembers (its 300 newest), by kind.",
		append(ofService, "kind"), nil)
	metricFlows = prometheus.NewDesc("pando_flows_total", "New flows steered to an instance.",
		ofEndpoint, nil)
	metricPackets = prometheus.NewDesc("pando_packets_total", "Packets steered to an instance.",
		ofEndpoint, nil)
	metricBytes = prometheus.NewDesc("pando_bytes_total", "Bytes steered to an instance.",
		ofEndpoint, nil)
	metricScore = prometheus.NewDesc("pando_instance_score",
		"Score of an instance as its own host measures it; lower is better.", ofEndpoint, nil)
	metricReported = prometheus.NewDesc("pando_instance_metric",
		"A number of the application (PUT /v1/self/metrics).", append(ofEndpoint, "name"), nil)
	metricDropped = prometheus.NewDesc("pando_dropped_packets_total",
		"Packets that the steering of a host dropped, by reason.", []string{"host", "reason"}, nil)
	metricAnswered = prometheus.NewDesc("pando_answered_drops_total",
		"Dropped packets that were answered with an error.", ofHost, nil)
	metricEvicted = prometheus.NewDesc("pando_evicted_flows_total",
		"Flows that a full connection table gave up.", ofHost, nil)
	metricHosts = prometheus.NewDesc("pando_host_info", "Always 1 for a host that has its lease.",
		[]string{"host", "version"}, nil)
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		metricServices, metricInstances, metricMax, metricDecisions, metricFlows, metricPackets,
		metricBytes, metricScore, metricReported, metricDropped, metricAnswered, metricEvicted,
		metricHosts,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	hosts, err := g.Hosts(g.ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(metricHosts, err)
	}
	for _, h := range hosts {
		if h.State != pando.HostHere {
			continue
		}
		send(metricHosts, prometheus.GaugeValue, 1, string(h.Name), h.Version)
		if h.Losses == nil {
			continue
		}
		for why, n := range h.Losses.Dropped {
			send(metricDropped, prometheus.CounterValue, float64(n), string(h.Name), string(why))
		}
		send(metricAnswered, prometheus.CounterValue, float64(h.Losses.Answered), string(h.Name))
		send(metricEvicted, prometheus.CounterValue, float64(h.Losses.Evicted), string(h.Name))
	}
	services, err := g.Services(g.ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(metricServices, err)
	}
	for _, st := range services {
		labels := []string{string(st.Tenant), string(st.Name)}
		send(metricServices, prometheus.GaugeValue, 1, append(labels, string(st.Phase))...)
		send(metricMax, prometheus.GaugeValue, float64(st.Scale.Max), labels...)
		phases, kinds := map[string]int{}, map[string]int{}
		for _, i := range st.Instances {
			phases[string(i.Phase)]++
		}
		for p, n := range phases {
			send(metricInstances, prometheus.GaugeValue, float64(n), append(labels, p)...)
		}
		because, err := g.Why(g.ctx, st.ServiceKey, 0)
		for _, b := range because {
			if err == nil && b.Decision != nil {
				kinds[string(b.Decision.Kind)]++
			}
		}
		for k, n := range kinds {
			send(metricDecisions, prometheus.GaugeValue, float64(n), append(labels, k)...)
		}
		counters, err := g.Counters(g.ctx, st.ServiceKey)
		if err != nil {
			continue // the service is gone, or its host does not answer: the others count
		}
		for _, c := range counters {
			of := append(labels, string(c.Instance))
			send(metricFlows, prometheus.CounterValue, float64(c.Flows), of...)
			send(metricPackets, prometheus.CounterValue, float64(c.Packets), of...)
			send(metricBytes, prometheus.CounterValue, float64(c.Bytes), of...)
			if c.Score != nil {
				send(metricScore, prometheus.GaugeValue, c.Score.Value, of...)
			}
			if c.Meter != nil {
				for name, v := range c.Meter.Metrics {
					send(metricReported, prometheus.GaugeValue, v, append(of, name)...)
				}
			}
		}
	}
}
