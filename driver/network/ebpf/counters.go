package ebpf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

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
	countStranger // more reasons for a drop
	countTooLarge
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
	out.Packets[pando.DroppedTooLarge] = counts[countTooLarge]
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

// Counters implements pando.Steering. It reads the counters without the lock, and many at once: a
// read of each by itself held up every publication for 5 ms at 2,000 endpoints.
func (d *Driver) Counters(context.Context) ([]pando.EndpointCounters, error) {
	d.mu.Lock()
	out := make([]pando.EndpointCounters, 0, len(d.index.names))
	slots := make([]uint32, 0, len(d.index.names))
	for slot, name := range d.index.names {
		if slot >= endpointsMax {
			continue // the host of an endpoint counts its flows
		}
		slots = append(slots, slot)
		out = append(out, pando.EndpointCounters{Instance: name,
			Service: d.index.keys[d.index.slots[slot].Service]})
	}
	d.mu.Unlock()
	sums, err := d.flows.counts.traffic(slots)
	if err != nil {
		return nil, fmt.Errorf("read the steering counters: %w", err)
	}
	for n, slot := range slots {
		c := sums[slot]
		out[n].Flows, out[n].Packets, out[n].Bytes, out[n].Ends = c.Flows, c.Packets, c.Bytes, c.Ends
	}
	return out, nil
}

const trafficAtOnce = 512 // endpoints; each has a value for each CPU

// traffic returns the counters of endpoints by slot, up to the highest of the given slots.
func (c counters) traffic(slots []uint32) ([]steerCounters, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	out := make([]steerCounters, 0, slices.Max(slots)+trafficAtOnce)
	keys, perCPU := make([]uint32, trafficAtOnce), make([]steerCounters, trafficAtOnce*c.cpus)
	var cursor ebpf.MapBatchCursor
	for len(out) <= int(slices.Max(slots)) {
		n, err := c.objects.Traffic.BatchLookup(&cursor, keys, perCPU, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, err
		}
		for at := range n {
			var sum steerCounters
			for _, v := range perCPU[at*c.cpus : (at+1)*c.cpus] {
				sum.Flows += v.Flows
				sum.Packets += v.Packets
				sum.Bytes += v.Bytes
				sum.Ends += v.Ends
			}
			out = append(out, sum)
		}
		if err != nil { // the array ends here
			break
		}
	}
	return out, nil
}
