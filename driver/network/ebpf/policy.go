package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// policies writes the policies, scores and ranks of services. They are maps of their own, so that
// ten measurements a second rebuild no table. They have a lock of their own, so that no score waits
// for a publication.
//
// A rank is written like a table: the idle one first, then the word that makes it active.
type policies struct {
	objects *steerObjects

	mu      sync.Mutex         // guards the fields below; taken after the driver's
	of      map[uint32]*policy // by service; those that this driver has written
	numbers map[pando.ServiceKey]uint32
}

// policy is the policy of one service as it is in force.
type policy struct {
	now   steerPolicy
	slots map[pando.InstanceID]uint32 // of the endpoints that take new flows
	order []uint32                    // the rank in use
}

// enum balance_by of bpf/pando.h, in the order of pando.BalanceKinds.
const (
	byHash = iota
	byRoundRobin
	byHaven
	byScore
	byLeastFlows
	byClient
)

// The scale of a score in the kernel, which has no fractions.
const (
	scoreOne  = 1 << 20
	scoreMost = 1 << 30
	excluded  = 1 << 31 // bpf/pando.h
)

const forEver = math.MaxUint64

// monotonic returns the kernel's time in nanoseconds, as the programs read it.
func monotonic() (uint64, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano()), err
}

func newPolicies(o *steerObjects) *policies {
	return &policies{objects: o, of: map[uint32]*policy{}, numbers: map[pando.ServiceKey]uint32{}}
}

// begin clears the numbers of a former endpoint in a slot.
func (p *policies) begin(slot uint32) error {
	if err := p.objects.Scores.Put(slot, uint32(0)); err != nil {
		return err
	}
	return p.objects.Live.Put(slot, int32(0))
}

// kindOf returns the number of a policy in bpf/pando.h.
func kindOf(by pando.BalanceBy) (uint32, error) {
	n := slices.Index(pando.BalanceKinds, cmp.Or(by, pando.ByHash))
	if n < 0 {
		return 0, fmt.Errorf("%w: a policy %q; upgrade pando on this host", pando.ErrInvalid, by)
	}
	return uint32(n), nil
}

// isRanked reports whether a policy takes endpoints in turn.
func isRanked(by uint32) bool { return by == byRoundRobin || by == byHaven }

// publish brings the policy of a service in line with its table, which is in force. slots are those
// of its endpoints. A rank never names an endpoint that drains when publish returns.
func (p *policies) publish(service uint32, t pando.SteeringTable, slots []uint32) error {
	by, err := kindOf(t.By)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.of[service]
	if was == nil { // a former agent may have written it
		was = &policy{}
		if err := p.objects.Policies.Lookup(service, &was.now); err != nil {
			return err
		}
	}
	next := &policy{now: was.now, order: was.order, slots: map[pando.InstanceID]uint32{}}
	for n, e := range t.Endpoints {
		if e.Weight > 0 {
			next.slots[e.Instance] = slots[n]
		}
	}
	if by != was.now.By {
		next.now.By, next.now.Until, next.order = by, 0, nil
		if by == byRoundRobin || by == byLeastFlows {
			next.now.Until = forEver // they need no scores
		}
	}
	if isRanked(by) {
		err = p.rank(service, next, next.sorted(was))
	} else if next.now != was.now || p.of[service] == nil {
		err = p.objects.Policies.Put(service, next.now)
	}
	if err == nil {
		p.of[service], p.numbers[t.Service] = next, service
	}
	return err
}

// sorted returns the rank after a change of the table: the endpoints of the former rank that stay
// keep their order. For Fig. 5 of HAVEN a new endpoint comes first: no flow has reached it yet.
func (p *policy) sorted(former *policy) []uint32 {
	if p.now.By == byRoundRobin {
		names := make([]pando.InstanceID, 0, len(p.slots))
		for i := range p.slots {
			names = append(names, i)
		}
		slices.Sort(names)
		return p.numbers(names)
	}
	var fresh, stay []uint32
	all := map[uint32]bool{}
	for _, slot := range p.slots {
		all[slot] = true
		if !slices.Contains(former.order, slot) {
			fresh = append(fresh, slot)
		}
	}
	for _, slot := range former.order {
		if all[slot] {
			stay = append(stay, slot)
		}
	}
	slices.Sort(fresh)
	return append(fresh, stay...)
}

// numbers returns the slots of instances that take new flows.
func (p *policy) numbers(order []pando.InstanceID) []uint32 {
	out := make([]uint32, 0, len(p.slots))
	for _, i := range order {
		if slot, ok := p.slots[i]; ok {
			out = append(out, slot)
		}
	}
	return out
}

// rank writes a rank and makes it the active one. Round robin continues; the rank of scores begins
// with its first endpoint.
func (p *policies) rank(service uint32, v *policy, order []uint32) error {
	if v.now.By == byRoundRobin && len(order) > 0 && slices.Equal(order, v.order) {
		return nil
	}
	active := v.now.Active & 1
	idle := active ^ 1
	for n := 0; n*chunkBuckets < max(len(order), int(v.now.Members[idle])); n++ {
		k := steerRankKey{Service: service, Which: uint16(idle), Chunk: uint16(n)}
		if n*chunkBuckets >= len(order) {
			if err := ignoreMissing(p.objects.Ranks.Delete(k)); err != nil {
				return err
			}
			continue
		}
		var c chunk
		for i, slot := range order[n*chunkBuckets : min(len(order), (n+1)*chunkBuckets)] {
			c.Endpoint[i] = uint16(slot)
		}
		if err := p.objects.Ranks.Put(k, c); err != nil {
			return err
		}
	}
	var turn steerTurn
	if v.now.By == byRoundRobin {
		if err := p.objects.Turns.Lookup(2*service+active, &turn); err != nil {
			return err
		}
		if v.order == nil {
			turn.At = secret() // so that hosts do not take the same one first
		}
	}
	if err := p.objects.Turns.Put(2*service+idle, turn); err != nil {
		return err
	}
	v.now.Members[idle] = uint32(len(order))
	if err := p.objects.Policies.Put(service, v.now); err != nil {
		return err
	}
	v.now.Active, v.order = idle, order
	return p.objects.Policies.Put(service, v.now)
}

// Score implements pando.Steering. It waits for no publication and for no sweep.
func (d *Driver) Score(_ context.Context, s pando.ServiceKey, r pando.Ranking) error {
	if err := d.policies.score(s, r); err != nil {
		return fmt.Errorf("write the scores of %s: %w", s, err)
	}
	return nil
}

func (p *policies) score(s pando.ServiceKey, r pando.Ranking) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	service, ok := p.numbers[s]
	if !ok {
		return nil // its first table is on its way
	}
	v := p.of[service]
	switch v.now.By {
	case byHaven:
		v.now.Until = now + uint64(pando.ScoresHold)
		order := v.numbers(r.Order)
		if len(order) < len(v.slots) {
			order = append(order, missing(v.slots, order)...)
		}
		return p.rank(service, v, order)
	case byScore:
		var slots, values []uint32
		for _, s := range r.Scores {
			if slot, ok := v.slots[s.Instance]; ok {
				slots, values = append(slots, slot), append(values, fixed(s))
			}
		}
		if len(slots) == 0 {
			return nil
		}
		v.now.Until = now + uint64(pando.ScoresHold)
		return p.write(service, v.now, slots, values)
	}
	return nil
}

// write brings the scores of a service into force. It stores them in the memory of the maps: two
// system calls for each of 1,000 services took 3 ms of every tenth of a second.
func (p *policies) write(service uint32, v steerPolicy, slots, values []uint32) error {
	scores, err := p.objects.Scores.Memory()
	if errors.Is(err, ebpf.ErrNotSupported) { // a former build made the maps (sizes.go)
		if _, err := p.objects.Scores.BatchUpdate(slots, values, nil); err != nil {
			return err
		}
		return p.objects.Policies.Put(service, v)
	}
	if err != nil {
		return err
	}
	until, err := p.objects.Policies.Memory()
	if err != nil {
		return err
	}
	for n, slot := range slots {
		if err := store(scores, slot, scoreBytes, 0, values[n]); err != nil {
			return err
		}
	}
	return store(until, service, unsafe.Sizeof(v), unsafe.Offsetof(v.Until), v.Until)
}

// scoreBytes is the size of an entry of the map of scores: the kernel rounds up to 8.
const scoreBytes = 8

// store writes a word of an entry of an array. Copies of 4 and of 8 bytes are single stores.
func store[W uint32 | uint64](m *ebpf.Memory, entry uint32, size, offset uintptr, w W) error {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&w)), unsafe.Sizeof(w))
	_, err := m.WriteAt(b, int64(uintptr(entry)*size+offset))
	return err
}

// missing returns the slots that an order lacks.
func missing(of map[pando.InstanceID]uint32, order []uint32) (out []uint32) {
	for _, slot := range of {
		if !slices.Contains(order, slot) {
			out = append(out, slot)
		}
	}
	slices.Sort(out)
	return out
}

// fixed returns a score as the programs compare it.
func fixed(s pando.Score) uint32 {
	v := uint32(min(max(s.Value*scoreOne, 0), scoreMost))
	if s.Excluded {
		v += excluded
	}
	return v
}

// withdraw clears the policy of a service.
func (p *policies) withdraw(s pando.ServiceKey, service uint32) error {
	var now steerPolicy
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.objects.Policies.Lookup(service, &now); err != nil {
		return err
	}
	delete(p.of, service)
	delete(p.numbers, s)
	if now == (steerPolicy{}) {
		return nil
	}
	if err := p.objects.Policies.Put(service, steerPolicy{}); err != nil {
		return err
	}
	for which, members := range now.Members {
		for n := 0; n*chunkBuckets < int(members); n++ {
			k := steerRankKey{Service: service, Which: uint16(which), Chunk: uint16(n)}
			if err := ignoreMissing(p.objects.Ranks.Delete(k)); err != nil {
				return err
			}
		}
	}
	return nil
}

// live returns the live flows by slot, or nil if no policy counts them.
func (p *policies) live() ([]int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.of {
		if v.now.By == byLeastFlows {
			return all[int32](p.objects.Live)
		}
	}
	return nil, nil
}

// correct adds the error of the live flows at the start of a walk over the table: the flows found,
// less their former number. Flows that begin or end meanwhile may count either way, until the next
// walk.
func (p *policies) correct(before []int32, found map[uint32]int32) error {
	if before == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.of {
		if v.now.By != byLeastFlows {
			continue
		}
		for _, slot := range v.slots {
			var n int32
			if err := p.objects.Live.Lookup(slot, &n); err != nil {
				return err
			}
			if now := n + found[slot] - before[slot]; now != n {
				if err := p.objects.Live.Put(slot, now); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
