package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Flags of a flow (bpf/pando.h).
const (
	flowEstablished = 1
	flowFIN         = 2
	flowRST         = 4
	flowAnswered    = 8
	flowUsed        = flowEstablished | flowFIN | flowRST
)

// The orders for the program change (bpf/pando.h).
const (
	orderAdd = iota
	orderHold
	orderForget
	orderCopied = 1 << 8 // with another: the flow was counted by another layout's table
)

const readAtOnce = 4096 // entries of the connection table

// entry is one entry of the connection table, of either family.
type entry struct {
	client, vip netip.AddrPort // the VIP's port is the published one
	protocol    uint8
	flow        steerFlow
	held        bool          // it is proven: no other flow evicts it
	guarded     bool          // it is not proven, and no other flow evicts it
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

// ends4 and ends6 return the two ends of a flow and its protocol.
func ends4(k steerFlowKey) (client, vip netip.AddrPort, protocol uint8) {
	return netip.AddrPortFrom(address(k.Client), network(k.ClientPort)),
		netip.AddrPortFrom(vipAt(k.Vip), network(k.Port)), k.Protocol
}

func ends6(k steerFlowKey6) (client, vip netip.AddrPort, protocol uint8) {
	return netip.AddrPortFrom(address6(k.Client), network(k.ClientPort)),
		netip.AddrPortFrom(vip6At(k.Vip), network(k.Port)), k.Protocol
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
	four := func(m *ebpf.Map, held, guarded bool) error {
		return each(m, func(k steerFlowKey, v steerFlow) {
			client, vip, protocol := ends4(k)
			f(entry{client, vip, protocol, v, held, guarded, idle(v)})
		})
	}
	six := func(m *ebpf.Map, held, guarded bool) error {
		return each(m, func(k steerFlowKey6, v steerFlow) {
			client, vip, protocol := ends6(k)
			f(entry{client, vip, protocol, v, held, guarded, idle(v)})
		})
	}
	// A flow moves from opening to held. The walk goes the same way, so it misses none.
	errs := []error{four(t.objects.Opening, false, false), six(t.objects.Opening6, false, false),
		four(t.objects.Guarded, false, true), six(t.objects.Guarded6, false, true)}
	var sums [2]uint64 // an empty table of a million places is not read
	for n := range sums {
		if err := t.objects.Held.Lookup(uint32(2*pando.ServicesMax+n), &sums[n]); err != nil {
			return err
		}
	}
	if sums[0] > 0 {
		errs = append(errs, four(t.objects.Flows, true, false))
	}
	if sums[1] > 0 {
		errs = append(errs, six(t.objects.Flows6, true, false))
	}
	return errors.Join(errs...)
}

// noteUnguarded clears the mark of unguarded flows if a walk over the table found none. A program
// sets the mark, then adds a flow. A flow may be on its way, so the empty tables are read again.
func (t flowTable) noteUnguarded(found openings) error {
	var was uint32
	if err := t.objects.Unguarded.Get(&was); err != nil || was == 0 || found.unguarded > 0 {
		return err
	}
	if err := t.objects.Unguarded.Set(uint32(0)); err != nil {
		return err
	}
	n := 0
	err := errors.Join(each(t.objects.Opening, func(steerFlowKey, steerFlow) { n++ }),
		each(t.objects.Opening6, func(steerFlowKey6, steerFlow) { n++ }))
	if n == 0 && err == nil {
		return nil
	}
	return errors.Join(err, t.objects.Unguarded.Set(uint32(1)))
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

// order has the program change carry out an order, and reports whether it had an effect. The
// program changes the table and its counts in one step.
func (t flowTable) order(what uint32, e entry) (bool, error) {
	o := steerOrder{What: what, Flow: e.flow}
	if e.client.Addr().Is6() {
		k := key6(e)
		o.Six = 1
		copy(o.Key[:], (*[unsafe.Sizeof(k) / 4]uint32)(unsafe.Pointer(&k))[:])
	} else {
		k := key4(e)
		copy(o.Key[:], (*[unsafe.Sizeof(k) / 4]uint32)(unsafe.Pointer(&k))[:])
	}
	data := make([]byte, etherHeader, etherHeader+unsafe.Sizeof(o))
	data = append(data, (*[unsafe.Sizeof(o)]byte)(unsafe.Pointer(&o))[:]...)
	done, err := t.objects.Change.Run(&ebpf.RunOptions{Data: data, Repeat: 1})
	if err != nil {
		return false, fmt.Errorf("change the connection table: %w", err)
	}
	return done == 1, nil
}

const etherHeader = 14

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
	for name, slot := range d.index.endpoints[service] {
		at := d.index.slots[slot]
		if at.Away != 0 {
			continue
		}
		sockets, err := openConnections(d.netns[slot])
		if err != nil {
			d.netns[slot] = "" // its sockets cannot be listed
			continue
		}
		for c, established := range sockets {
			goes, front := uint8(toPublished), pando.IsFront(c.local.Addr())
			if front {
				goes = targetToHost
			}
			published, ok := d.index.translations[at.Ifindex][steerPortKey{Ifindex: at.Ifindex,
				Port: network(c.local.Port()), Protocol: c.protocol, Goes: goes}]
			if !ok || !front && c.local.Addr() != t.VIP4 && c.local.Addr() != t.VIP6 {
				continue
			}
			e := entry{client: c.client, vip: netip.AddrPortFrom(c.local.Addr(), network(published)),
				protocol: c.protocol}
			e.flow = steerFlow{Endpoint: slot, Epoch: at.Epoch, Service: service,
				Target: network(c.local.Port()), Seen: uint64(now)}
			if err := d.flows.take(e, established, 0); err != nil {
				return err
			}
			d.filledFrom[name]++
		}
	}
	d.filled[t.Service] = true
	return nil
}

// take adds a flow, unless the table has one of its key. A proven one is held, unless its service
// has its share.
func (t flowTable) take(e entry, proven bool, how uint32) error {
	if proven {
		if done, err := t.order(orderHold|how, e); done || err != nil {
			return err
		}
		e.flow.Flags |= flowEstablished
	}
	_, err := t.order(orderAdd|how, e)
	return err
}
