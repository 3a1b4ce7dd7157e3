package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const (
	sweepBatch = 4096
	// A UDP flow has no end that could be seen: it is over when nothing comes for this long.
	udpIdleMax = 30 * time.Second
	// A TCP flow that has been silent this long is looked up among the instance's sockets.
	tcpIdleLook = 5 * time.Second
)

// suspect is an entry of the connection table that may be over.
type suspect struct {
	key  steerFlowKey
	flow steerFlow
}

// Sweep implements pando.Steering. The instances' own sockets are the truth; the table is a cache of it.
func (d *Driver) Sweep(context.Context) (pando.SweepReport, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	report := pando.SweepReport{Flows: map[pando.InstanceID]int{}}
	names, live, err := d.endpointsByNumber()
	if err != nil {
		return report, fmt.Errorf("sweep the connection table: %w", err)
	}
	suspects := map[uint32][]suspect{}
	var over []steerFlowKey
	err = d.eachFlow(func(k steerFlowKey, f steerFlow, idle time.Duration) {
		e, ok := live[f.Endpoint]
		switch {
		case !ok || e.Epoch != f.Epoch, k.Protocol == protocols[pando.UDP] && idle > udpIdleMax:
			over = append(over, k)
		case k.Protocol == protocols[pando.TCP] && (f.Flags&(flowFIN|flowRST) != 0 || idle > tcpIdleLook || f.Flags == 0):
			suspects[f.Endpoint] = append(suspects[f.Endpoint], suspect{k, f})
		default:
			report.Flows[names[f.Endpoint]]++
		}
	})
	if err != nil {
		return report, fmt.Errorf("sweep the connection table: %w", err)
	}
	for n, list := range suspects {
		open, err := openConnections(d.links[names[n]].Netns)
		for _, s := range list {
			if err == nil && !open[connection{netip.AddrPortFrom(address(s.key.Client), network(s.key.ClientPort)), network(s.flow.Target)}] {
				over = append(over, s.key)
			} else {
				report.Flows[names[n]]++
			}
		}
	}
	for _, k := range over {
		if err := ignoreMissing(d.objects.Flows.Delete(k)); err != nil {
			return report, fmt.Errorf("sweep the connection table: %w", err)
		}
		report.Closed++
	}
	return report, nil
}

// Flags of a flow (bpf/pando.h).
const (
	flowFIN = 2
	flowRST = 4
)

func (d *Driver) endpointsByNumber() (map[uint32]pando.InstanceID, map[uint32]steerEndpoint, error) {
	names, live := map[uint32]pando.InstanceID{}, map[uint32]steerEndpoint{}
	var n uint32
	var name steerName
	it := d.objects.EndpointNames.Iterate()
	for it.Next(&n, &name) {
		if name.Used == 0 {
			continue
		}
		var e steerEndpoint
		if err := d.objects.Endpoints.Lookup(n, &e); err != nil {
			return nil, nil, err
		}
		names[n], live[n] = pando.InstanceID(textOf(name)), e
	}
	return names, live, it.Err()
}

func (d *Driver) eachFlow(f func(steerFlowKey, steerFlow, time.Duration)) error {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return err
	}
	now := uint64(ts.Nano())
	keys, values := make([]steerFlowKey, sweepBatch), make([]steerFlow, sweepBatch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := d.objects.Flows.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i], time.Duration(max(now, values[i].Seen)-values[i].Seen))
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// connection is one that an instance has: who is at its other end, and its own port.
type connection struct {
	client netip.AddrPort
	port   uint16
}

// openConnections lists the TCP connections inside a network namespace that are not over.
func openConnections(path string) (map[connection]bool, error) {
	out := map[connection]bool{}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it never leaves the namespace
		done <- func() error {
			ns, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return err
			}
			for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
				sockets, err := netlink.SocketDiagTCP(family)
				if err != nil {
					return err
				}
				for _, s := range sockets {
					a, ok := netip.AddrFromSlice(s.ID.Destination)
					if ok && s.State != netlink.TCP_TIME_WAIT && s.State != netlink.TCP_CLOSE && s.State != netlink.TCP_LISTEN {
						out[connection{netip.AddrPortFrom(a.Unmap(), s.ID.DestinationPort), s.ID.SourcePort}] = true
					}
				}
			}
			return nil
		}()
	}()
	return out, <-done
}

// Counters implements pando.Steering.
func (d *Driver) Counters(context.Context) ([]pando.EndpointCounters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	published, err := d.published()
	if err != nil {
		return nil, fmt.Errorf("read the steering counters: %w", err)
	}
	var out []pando.EndpointCounters
	for s, service := range published {
		known, _, err := d.slotsOf(service)
		if err != nil {
			return nil, fmt.Errorf("read the steering counters: %w", err)
		}
		for name, slot := range known {
			var perCPU []steerCounters
			if err := d.objects.Traffic.Lookup(slot, &perCPU); err != nil {
				return nil, fmt.Errorf("read the steering counters: %w", err)
			}
			c := pando.EndpointCounters{Service: s, Instance: pando.InstanceID(name)}
			for _, v := range perCPU {
				c.Flows += v.Flows
				c.Packets += v.Packets
				c.Bytes += v.Bytes
			}
			out = append(out, c)
		}
	}
	return out, nil
}
