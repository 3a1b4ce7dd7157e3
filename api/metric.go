package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metric is one name that a scrape may have. docs/reference/metrics.md is made from these.
type metric struct {
	name, help string
	labels     []string
	kind       prometheus.ValueType
	bound      string // of its number of series
	desc       *prometheus.Desc
}

// metrics are those of one endpoint, in the order of the reference.
type metrics struct{ all []*metric }

func (m *metrics) add(
	kind prometheus.ValueType, name, bound, help, labels string,
) *metric {
	one := &metric{name: name, help: help, labels: strings.Fields(labels), kind: kind, bound: bound}
	one.desc = prometheus.NewDesc(one.name, help, one.labels, nil)
	m.all = append(m.all, one)
	return one
}

// gauge adds a number that rises and falls.
func (m *metrics) gauge(name, bound, help, labels string) *metric {
	return m.add(prometheus.GaugeValue, name, bound, help, labels)
}

// counter adds a number that never falls while its process lives.
func (m *metrics) counter(name, bound, help, labels string) *metric {
	return m.add(prometheus.CounterValue, name, bound, help, labels)
}

// Describe sends the descriptions of all metrics, as prometheus.Collector wants them.
func (m *metrics) describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
}

// sample is a destination of values during one scrape.
type sample chan<- prometheus.Metric

func (s sample) put(m *metric, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

// failed leaves one metric out of the answer.
func (s sample) failed(m *metric, err error) {
	s <- prometheus.NewInvalidMetric(m.desc, err)
}

// is returns 1 for true.
func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// own are the metrics of the process that answers, with the names that every exporter uses.
var own = collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})

// scrape answers with the metrics of a collector, as Prometheus text or OpenMetrics. A part that
// fails leaves the others in place.
func scrape(w http.ResponseWriter, r *http.Request, c prometheus.Collector) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c, own)
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError,
	}).ServeHTTP(w, r)
}

// reference returns the table of the metrics for docs/reference/metrics.md.
func (m *metrics) reference() string {
	var b strings.Builder
	b.WriteString("| name | kind | labels | series at most | |\n|---|---|---|---|---|\n")
	for _, one := range m.all {
		kind := "gauge"
		if one.kind == prometheus.CounterValue {
			kind = "counter"
		}
		labels := "–"
		if len(one.labels) > 0 {
			labels = strings.Join(one.labels, ", ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", one.name, kind, labels, one.bound, one.help)
	}
	return b.String()
}
