package api

import (
	"sync"

	"pando.run/pando"
)

// traffic is a sum of counters of endpoints.
type traffic struct{ flows, packets, bytes uint64 }

// tally turns the counters of endpoints, which come and go with their instances, into sums per
// service that never fall. The first look at a host is the zero of its endpoints. A sum misses the
// traffic between the last look at an endpoint and its end.
//
// It keeps one entry for each endpoint on each host, and for missesMax looks after the last sign of
// it: a host may be silent for a while.
type tally struct {
	mu    sync.Mutex
	hosts map[pando.HostName]bool
	last  map[endpointOf]looked
	sums  map[pando.ServiceKey]traffic
}

// endpointOf names the counters of an instance on a host that steers flows to it.
type endpointOf struct {
	service  pando.ServiceKey
	instance pando.InstanceID
	host     pando.HostName
}

// looked is the newest look at an endpoint.
type looked struct {
	traffic
	misses int // looks since then
}

// missesMax is an hour of scrapes at an interval of 15 s.
const missesMax = 240

// since returns the growth of a counter. A smaller number is that of a counter that began again.
func since(was, now uint64) uint64 {
	if now < was {
		return now
	}
	return now - was
}

// add takes the counters of the endpoints of services at one moment, and returns the sums of the
// services. It forgets all other services.
func (t *tally) add(
	services []pando.ServiceKey, counters []pando.EndpointCounters,
) map[pando.ServiceKey]traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := make(map[pando.ServiceKey]traffic, len(services))
	for _, s := range services {
		sums[s] = t.sums[s]
	}
	last, hosts := make(map[endpointOf]looked, len(counters)), map[pando.HostName]bool{}
	for _, c := range counters {
		hosts[c.Host] = true
		at := endpointOf{c.Service, c.Instance, c.Host}
		now := traffic{c.Flows, c.Packets, c.Bytes}
		was, known := t.last[at]
		last[at] = looked{traffic: now}
		sum, wanted := sums[c.Service]
		if !wanted || !known && !t.hosts[c.Host] {
			continue
		}
		sums[c.Service] = traffic{sum.flows + since(was.flows, now.flows),
			sum.packets + since(was.packets, now.packets), sum.bytes + since(was.bytes, now.bytes)}
	}
	for at, was := range t.last {
		_, wanted := sums[at.service]
		if _, seen := last[at]; !seen && wanted && was.misses < missesMax {
			was.misses++
			last[at] = was
			hosts[at.host] = true
		}
	}
	t.last, t.sums, t.hosts = last, sums, hosts
	return sums
}
