package octavia

import "pando.run/pando"

// Stats returns the traffic of a load balancer by the counters and the use of the instances that
// stand for its members. Its totals are those of the present instances. Bytes include the headers.
//
// Steering counts the packets to the members alone: replies do not pass it. The link of an instance
// has the packets of both ways, so bytes_out is the difference. It includes the probes.
func Stats(counters []pando.EndpointCounters, usage []pando.InstanceUsage) Object {
	var in, out, flows uint64
	open := 0
	host := map[pando.InstanceID]pando.HostName{}
	for _, u := range usage {
		host[u.Instance] = u.Host
		out += u.BytesOut
	}
	for _, c := range counters {
		in, flows = in+c.Bytes, flows+c.Flows
		if c.Host == host[c.Instance] { // its host has the flows of other hosts too
			open += c.Open
		}
	}
	return Object{"bytes_in": in, "bytes_out": out - min(in, out), "total_connections": flows,
		"active_connections": open, "request_errors": 0}
}
