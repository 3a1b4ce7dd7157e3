package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Flags of a flow (bpf/pando.h).
const (
	flowEstablished = 1
	flowFIN         = 2
	flowRST         = 4
)

const readAtOnce = 4096 // entries of the connection table

// entry is one entry of the connection table, of either family.
type entry struct {
	client, vip netip.AddrPort // the VIP's port is the published one
	protocol    uint8
	flow        steerFlow
	idle        time.Duration // for a TCP flow that is not established: its age
}

// socket returns the flow as the instance sees it.
func (e entry) socket() connection {
	return connection{e.protocol, e.client, netip.AddrPortFrom(e.vip.Addr(), network(e.flow.Target))}
}

func key4(e entry) steerFlowKey {
	return steerFlowKey{
		Client: native(e.client.Addr()), Vip: vipOf(e.vip.Addr()),
		ClientPort: network(e.client.Port()), Port: network(e.vip.Port()), Protocol: e.protocol,
	}
}

func key6(e entry) steerFlowKey6 {
	return steerFlowKey6{
		Client: words(e.client.Addr()), Vip: vip6Of(e.vip.Addr()),
		ClientPort: network(e.client.Port()), Port: network(e.vip.Port()), Protocol: e.protocol,
	}
}

// A key has only the bytes that differ between VIPs (bpf/pando.h).
func vipOf(a netip.Addr) uint16 { return uint16(native(a) >> 16) }

func vip6Of(a netip.Addr) [2]uint32 { w := words(a); return [2]uint32{w[2], w[3]} }

func vipAt(n uint16) netip.Addr {
	return address(native(pando.VIPs4.Addr())&0xffff | uint32(n)<<16)
}

func vip6At(n [2]uint32) netip.Addr {
	w := words(pando.VIPs6.Addr())
	return address6([4]uint32{w[0], w[1], n[0], n[1]})
}

// flowTable is the connection table of both families. The programs use it at the same time.
type flowTable struct {
	objects *steerObjects
	counts  counters
	tick    time.Duration
}

// now returns the time in ticks, as the programs store it.
func (t flowTable) now() (uint32, error) {
	now, err := t.objects.Ticks.Run(&ebpf.RunOptions{Data: make([]byte, 14), Repeat: 1})
	if err != nil {
		return 0, fmt.Errorf("ask the kernel for its ticks: %w", err)
	}
	return now, nil
}

// tick returns the duration of one tick: the resolution of the coarse monotonic clock.
func tick() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return time.Duration(ts.Nano()), err
}

// each reads the connection table while the programs use it.
func (t flowTable) each(f func(entry)) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	idle := func(v steerFlow) time.Duration {
		return time.Duration(max(0, int32(now-uint32(v.Seen)))) * t.tick
	}
	return errors.Join(
		each(t.objects.Flows, func(k steerFlowKey, v steerFlow) {
			f(entry{netip.AddrPortFrom(address(k.Client), network(k.ClientPort)),
				netip.AddrPortFrom(vipAt(k.Vip), network(k.Port)), k.Protocol, v, idle(v)})
		}),
		each(t.objects.Flows6, func(k steerFlowKey6, v steerFlow) {
			f(entry{netip.AddrPortFrom(address6(k.Client), network(k.ClientPort)),
				netip.AddrPortFrom(vip6At(k.Vip), network(k.Port)), k.Protocol, v, idle(v)})
		}),
	)
}

func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	keys, values := make([]K, readAtOnce), make([]V, readAtOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// forget deletes an entry from the connection table, unless a packet has arrived for it since it
// was read.
func (t flowTable) forget(e entry) (bool, error) {
	var now steerFlow
	m, key := t.objects.Flows, any(key4(e))
	if e.client.Addr().Is6() {
		m, key = t.objects.Flows6, key6(e)
	}
	err := m.Lookup(key, &now)
	if err == nil && now == e.flow {
		err = m.Delete(key)
		return err == nil, ignoreMissing(err)
	}
	return false, ignoreMissing(err)
}

// takeOver fills the connection table with the open connections of a service's instances, so that
// these survive. It does so at the first publication after the table was made anew: on a host that
// takes over, or after its pins were lost. It runs before the service's ports are published. Until
// then, no packet of these connections is answered.
func (d *Driver) takeOver(service uint32, t pando.SteeringTable) error {
	if !d.fresh || d.filled[t.Service] {
		return nil
	}
	now, err := d.flows.now()
	if err != nil {
		return err
	}
	for slot, name := range d.index.names {
		at := d.index.slots[slot]
		if at.Service != service {
			continue
		}
		sockets, err := openConnections(d.netns[slot])
		if err != nil {
			d.netns[slot] = "" // its sockets cannot be listed
			continue
		}
		for c, established := range sockets {
			published, ok := d.index.translations[at.Ifindex][steerPortKey{Ifindex: at.Ifindex,
				Port: network(c.local.Port()), Protocol: c.protocol, Goes: 1}]
			if !ok || c.local.Addr() != t.VIP4 && c.local.Addr() != t.VIP6 {
				continue
			}
			e := entry{client: c.client, vip: netip.AddrPortFrom(c.local.Addr(), network(published)),
				protocol: c.protocol}
			e.flow = steerFlow{Endpoint: slot, Epoch: at.Epoch, Target: network(c.local.Port()),
				Seen: uint64(now)}
			if established {
				e.flow.Flags = flowEstablished
			}
			if err := d.flows.add(e); err != nil {
				return err
			}
			d.filledFrom[name]++
		}
	}
	d.filled[t.Service] = true
	return nil
}

// add adds an entry, unless the table has one of its key.
func (t flowTable) add(e entry) error {
	var err error
	if e.client.Addr().Is6() {
		err = t.objects.Flows6.Update(key6(e), e.flow, ebpf.UpdateNoExist)
	} else {
		err = t.objects.Flows.Update(key4(e), e.flow, ebpf.UpdateNoExist)
	}
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	if err == nil {
		err = t.counts.add(countSwept, -1)
	}
	return err
}
