package api

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"pando.run/pando"
)

// HostMetricsPath is the path of the metrics of one host.
const HostMetricsPath = "/metrics/host"

// HostMetrics answers scrapes of one host from its agent. It needs no server.
func HostMetrics(from pando.HostReporter) http.Handler {
	sums := &tally{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scrape(w, r, hostGauges{r.Context(), from, sums})
	})
}

// WithHostMetrics adds the metrics of this host to the operators' API.
func WithHostMetrics(operators, host http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+HostMetricsPath, host)
	mux.Handle("/", operators)
	return mux
}

// hostGauges reads a host for one scrape.
type hostGauges struct {
	ctx  context.Context
	from pando.HostReporter
	sums *tally
}

var (
	ofHost metrics

	hostInfo = ofHost.gauge("pando_agent_info", "1", "Always 1; the build of the agent is a label.",
		"host version")
	hostInstances = ofHost.gauge("pando_agent_instances", "1", "Instances that run on the host.", "")
	hostCPU       = ofHost.counter("pando_instance_cpu_seconds_total", "instances of the host",
		"Processor time of an instance.", "tenant service instance")
	hostMemory = ofHost.gauge("pando_instance_memory_bytes", "instances of the host",
		"Memory of an instance.", "tenant service instance")
	hostPIDs = ofHost.gauge("pando_instance_processes", "instances of the host",
		"Processes and threads of an instance.", "tenant service instance")
	hostConnections = ofHost.gauge("pando_instance_connections", "instances of the host",
		"Established connections of an instance at a VIP.", "tenant service instance")
	hostScore = ofHost.gauge("pando_instance_score", "instances of the host",
		"Score of an instance that is measured; lower is better.", "tenant service instance")
	hostStall = ofHost.gauge("pando_instance_stall_ratio", "instances of the host",
		"Share of the time that a measured instance waited for memory.", "tenant service instance")
	hostLoss = ofHost.gauge("pando_instance_resent_ratio", "instances of the host",
		"Share of the segments that a measured instance sent again.", "tenant service instance")
	hostRTT = ofHost.gauge("pando_instance_rtt_seconds", "instances of the host",
		"Mean round trip time of the connections of a measured instance.", "tenant service instance")
	hostQueue = ofHost.gauge("pando_instance_queue_bytes", "instances of the host",
		"Bytes that wait in the queue of an instance's link.", "tenant service instance")
	hostQueueDrops = ofHost.counter("pando_instance_queue_drops_total", "instances of the host",
		"Packets that the link of an instance dropped on their way to it.", "tenant service instance")
	hostReported = ofHost.gauge("pando_instance_metric", "256 × instances of the host",
		"A number of the application (PUT /v1/self/metrics).", "tenant service instance name")

	hostFlows = ofHost.counter("pando_agent_flows_total", "services",
		"New flows that the host steered to a service, on any host, since the first scrape.",
		"tenant service")
	hostBytes = ofHost.counter("pando_agent_bytes_total", "services",
		"Bytes that the host steered to a service, likewise.", "tenant service")
	hostUplinkQueue = ofHost.gauge("pando_agent_uplink_queue_bytes", "uplinks",
		"Bytes that wait in the queue of an uplink.", "device")
	hostUplinkDrops = ofHost.counter("pando_agent_uplink_queue_drops_total", "uplinks",
		"Packets that the queue of an uplink dropped.", "device")
	hostDropped = ofHost.counter("pando_agent_dropped_packets_total", "11",
		"Packets that the steering of the host dropped, by reason.", "reason")
	hostEvicted = ofHost.counter("pando_agent_evicted_flows_total", "1",
		"Flows that a full connection table gave up.", "")
	hostPublishes = ofHost.counter("pando_agent_publishes_total", "2",
		"Steering tables: published, failed.", "result")
	hostPublishTime = ofHost.counter("pando_agent_publish_seconds_total", "1",
		"Time that the publications took.", "")
	hostWaiting = ofHost.gauge("pando_agent_publishes_waiting", "1",
		"Services with a table to publish.", "")
	hostFailing = ofHost.gauge("pando_agent_publishes_failing", "1",
		"Services with a failed publication. The agent tries each again.", "")
	hostShares = ofHost.gauge("pando_agent_vip_shares", "1",
		"Shares of the VIPs for which the host answers on its network, of 256 (--announce).", "")

	hostLeases = ofHost.counter("pando_agent_leases_lost_total", "1",
		"How often the host lost its lease.", "")
	hostMerges = ofHost.counter("pando_agent_merges_total", "2",
		"Merges of the state of an instance: merged, failed.", "result")
	hostConflicts = ofHost.counter("pando_agent_conflicts_total", "1",
		"Paths of states of which a merge kept both versions.", "")
	hostLog = ofHost.counter("pando_agent_log_lines_total", "2",
		"Lines of the agent's log: warning, error.", "level")
)

// Describe implements prometheus.Collector.
func (g hostGauges) Describe(to chan<- *prometheus.Desc) { ofHost.describe(to) }

// Collect implements prometheus.Collector.
func (g hostGauges) Collect(to chan<- prometheus.Metric) {
	s := sample(to)
	f, err := g.from.HostFigures(g.ctx)
	if err != nil {
		s.failed(hostInfo, err)
		return
	}
	s.put(hostInfo, 1, string(f.Host), f.Version)
	s.put(hostInstances, float64(len(f.Instances)))
	for _, u := range f.Instances {
		g.instance(s, u)
	}
	var keys []pando.ServiceKey
	for _, c := range f.Counters {
		keys = append(keys, c.Service)
	}
	for k, sum := range g.sums.add(keys, f.Counters) {
		s.put(hostFlows, float64(sum.flows), string(k.Tenant), string(k.Name))
		s.put(hostBytes, float64(sum.bytes), string(k.Tenant), string(k.Name))
	}
	for device, q := range f.Uplinks {
		s.put(hostUplinkQueue, float64(q.BacklogBytes), device)
		s.put(hostUplinkDrops, float64(q.Drops), device)
	}
	for why, n := range f.Losses.Dropped {
		s.put(hostDropped, float64(n), string(why))
	}
	s.put(hostEvicted, float64(f.Losses.Evicted))
	s.put(hostPublishes, float64(f.Steering.Published), "published")
	s.put(hostPublishes, float64(f.Steering.Failed), "failed")
	s.put(hostPublishTime, f.Steering.Seconds)
	s.put(hostWaiting, float64(f.Steering.Waiting))
	s.put(hostFailing, float64(f.Steering.Failing))
	s.put(hostShares, float64(f.Shares))
	s.put(hostLeases, float64(f.LeasesLost))
	s.put(hostMerges, float64(f.Merges), "merged")
	s.put(hostMerges, float64(f.MergesFailed), "failed")
	s.put(hostConflicts, float64(f.Conflicts))
	s.put(hostLog, float64(f.Log.Warnings), "warning")
	s.put(hostLog, float64(f.Log.Errors), "error")
}

// instance sends the use of an instance. An instance that ends during the scrape has none.
func (g hostGauges) instance(s sample, u pando.InstanceUsage) {
	of := []string{string(u.Service.Tenant), string(u.Service.Name), string(u.Instance)}
	if u.Missing == "" {
		s.put(hostCPU, u.CPUSeconds, of...)
		if u.MemoryBytes != nil {
			s.put(hostMemory, float64(*u.MemoryBytes), of...)
		}
		if u.PIDs != nil {
			s.put(hostPIDs, float64(*u.PIDs), of...)
		}
		s.put(hostConnections, float64(u.Connections), of...)
	}
	if q := u.Queue; q != nil {
		s.put(hostQueue, float64(q.BacklogBytes), of...)
		s.put(hostQueueDrops, float64(q.Drops), of...)
	}
	if u.Score != nil {
		s.put(hostScore, u.Score.Value, of...)
	}
	if m := u.Meter; m != nil {
		s.put(hostStall, m.Stall, of...)
		s.put(hostLoss, m.Loss, of...)
		s.put(hostRTT, m.RTTSeconds, of...)
	}
	for name, v := range u.Metrics {
		s.put(hostReported, v, append(of, name)...)
	}
}
