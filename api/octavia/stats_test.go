package octavia

import (
	"fmt"
	"testing"

	"pando.run/pando"
)

// A flow that comes by another host is open at both, and counts once. The link of an instance has
// the packets of both ways.
func TestTheTrafficOfALoadBalancer(t *testing.T) {
	counters := []pando.EndpointCounters{
		{Instance: "a", Host: "h1", Flows: 3, Bytes: 300, Open: 2},
		{Instance: "a", Host: "h2", Flows: 1, Bytes: 100, Open: 1},
		{Instance: "b", Host: "h2", Flows: 5, Bytes: 50, Open: 4},
		{Instance: "gone", Host: "h2", Flows: 1},
	}
	usage := []pando.InstanceUsage{{Instance: "a", Host: "h1", BytesIn: 9, BytesOut: 1400},
		{Instance: "b", Host: "h2", BytesOut: 100}}
	for _, c := range []struct {
		counters []pando.EndpointCounters
		usage    []pando.InstanceUsage
		want     string
	}{
		{counters, usage, "map[active_connections:6 bytes_in:450 bytes_out:1050 request_errors:0 " +
			"total_connections:10]"},
		{counters, nil, "map[active_connections:0 bytes_in:450 bytes_out:0 request_errors:0 " +
			"total_connections:10]"},
		{nil, nil, "map[active_connections:0 bytes_in:0 bytes_out:0 request_errors:0 " +
			"total_connections:0]"},
	} {
		if got := fmt.Sprint(map[string]any(Stats(c.counters, c.usage))); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
