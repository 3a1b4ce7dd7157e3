package ebpf

import (
	"context"
	"fmt"

	"pando.run/pando"
)

// dropReasons has the order of enum count in bpf/pando.h, up to the first other count.
var dropReasons = [...]pando.DropReason{
	pando.DroppedSpoofed, pando.DroppedChatter, pando.DroppedFragment, pando.DroppedHeader,
	pando.DroppedProtocol,
	pando.DroppedNoService, pando.DroppedNoEndpoint, pando.DroppedNoFlow, pando.DroppedKernel,
}

// The rest of enum count.
const (
	countRefused = len(dropReasons) + iota
	countAdded
	countRemoved
	countSwept
	countCrowded
	countStranger // one more reason for a drop
	countKinds
)

// counters has the programs' counts of packets and flows, with a value for each CPU.
type counters struct {
	objects *steerObjects
	cpus    int
}

// sums returns each counter, summed over all CPUs.
func (c counters) sums() (out [countKinds]uint64, err error) {
	for n := range out {
		var perCPU []uint64
		if err := c.objects.Counts.Lookup(uint32(n), &perCPU); err != nil {
			return out, err
		}
		for _, v := range perCPU {
			out[n] += v
		}
	}
	return out, nil
}

// Drops implements pando.Steering.
func (d *Driver) Drops(context.Context) (pando.Drops, error) {
	out := pando.Drops{Packets: map[pando.DropReason]uint64{}}
	counts, err := d.flows.counts.sums()
	if err != nil {
		return out, fmt.Errorf("read why packets were dropped: %w", err)
	}
	for n, why := range dropReasons {
		out.Packets[why] = counts[n]
	}
	out.Packets[pando.DroppedStranger] = counts[countStranger]
	out.Packets[pando.DroppedNoEndpoint] += d.sleepers.lost()
	out.Answered = counts[countRefused]
	return out, nil
}

// Ends implements pando.Steering.
func (d *Driver) Ends(_ context.Context, s pando.ServiceKey, i pando.InstanceID) (uint64, error) {
	d.mu.Lock()
	slot, ok := d.index.endpoints[d.index.services[s]][i]
	d.mu.Unlock()
	if !ok || slot >= endpointsMax {
		return 0, nil
	}
	var perCPU []steerCounters
	if err := d.objects.Traffic.Lookup(slot, &perCPU); err != nil {
		return 0, fmt.Errorf("read how many flows of %s have ended: %w", i, err)
	}
	var n uint64
	for _, v := range perCPU {
		n += v.Ends
	}
	return n, nil
}

// Counters implements pando.Steering.
func (d *Driver) Counters(context.Context) ([]pando.EndpointCounters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	services := map[uint32]pando.ServiceKey{}
	for s, n := range d.index.services {
		services[n] = s
	}
	var out []pando.EndpointCounters
	for slot, name := range d.index.names {
		if slot >= endpointsMax {
			continue // the host of an endpoint counts its flows
		}
		var perCPU []steerCounters
		if err := d.objects.Traffic.Lookup(slot, &perCPU); err != nil {
			return nil, fmt.Errorf("read the steering counters: %w", err)
		}
		c := pando.EndpointCounters{Service: services[d.index.slots[slot].Service], Instance: name}
		for _, v := range perCPU {
			c.Flows += v.Flows
			c.Packets += v.Packets
			c.Bytes += v.Bytes
			c.Ends += v.Ends
		}
		out = append(out, c)
	}
	return out, nil
}
