package flowlet

import (
	"cmp"
	"slices"
)

// model is a second implementation of the flowlet rule. It is written from the description and as
// plainly as possible: lists, sorting, signed numbers. The tests compare the program with it packet
// by packet.
type model struct {
	rule       flowletAssignConfig
	finish     map[int]int64 // of each unit's queue
	accepting  map[int]bool
	ready      map[int]bool
	candidates []int // when the current packet arrived
	grown      int64
}

type modelFlow struct {
	known                      bool
	unit, previous             int
	seen, finish, alone, ready int64
	clock, epoch, position     int
	flowletBytes               int
	targets                    []int
}

type candidate struct {
	unit  int
	score int64
	rank  int // 0: has the flow; 1: has a replica; 2: neither
}

func (m *model) backlog(unit int, now int64) int64 { return max(0, m.finish[unit]-now) }

// packet decides the unit of a packet and reports whether the packet begins a flowlet.
func (m *model) packet(f *modelFlow, now int64, length int) bool {
	cost := int64(m.rule.PacketNs) + int64(length)*int64(m.rule.KibNs)/1024
	begins := m.begins(f, now, length)
	if begins {
		begins = m.assign(f, now)
	}
	if !f.known {
		return false
	}
	m.finish[f.unit] = max(m.finish[f.unit], now) + cost
	f.finish = max(m.finish[f.unit], max(f.ready, now)+cost)
	f.alone = max(f.alone, f.ready, now) + cost
	f.seen = now
	f.flowletBytes += length
	f.clock++
	f.position++
	return begins
}

func (m *model) begins(f *modelFlow, now int64, length int) bool {
	switch {
	case !f.known:
		return true
	case f.ready > now:
		return false
	case now-f.seen > int64(m.rule.GapNs), !m.accepting[f.unit]:
		return true
	}
	return m.rule.SizeBytes > 0 && f.flowletBytes+length > int(m.rule.SizeBytes)
}

// replicated returns the units with a copy of the flow's state, which is pushed after half a gap of
// silence.
func (m *model) replicated(f *modelFlow, now int64) []int {
	if !f.known || max(f.finish, f.seen)+int64(m.rule.GapNs)/2+int64(m.rule.PullNs) > now {
		return nil
	}
	return f.targets
}

func (m *model) assign(f *modelFlow, now int64) bool {
	replicas := m.replicated(f, now)
	tail := f.finish - now
	if f.finish-f.alone > int64(m.rule.CrowdedNs) {
		tail = f.alone - now
	}
	tail = max(tail, 0)
	var list []candidate
	if f.known && m.accepting[f.unit] {
		list = append(list, candidate{f.unit, m.backlog(f.unit, now), 0})
	}
	for _, unit := range replicas {
		if m.accepting[unit] {
			list = append(list, candidate{unit, m.backlog(unit, now), 1})
		}
	}
	for _, unit := range m.shortest(now) {
		score := m.backlog(unit, now)
		if f.known {
			score = max(score, tail+int64(m.rule.PullNs)) + int64(m.rule.StickNs)
		}
		list = append(list, candidate{unit, score, 2})
	}
	if len(list) == 0 {
		return false
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.rank, b.rank),
			cmp.Compare(a.unit, b.unit))
	})
	m.candidates = m.shortest(now)
	m.grow(now)
	m.move(f, list[0].unit, slices.Contains(replicas, list[0].unit), now)
	f.flowletBytes = 0
	f.targets = nil
	m.aim(f, now)
	return true
}

// shortest returns the units for the comparison: in each group of ids equal modulo 4, the unit with
// the shortest queue.
func (m *model) shortest(now int64) (units []int) {
	for group := range 4 {
		first := -1
		for unit := group; unit < Units; unit += 4 {
			if m.accepting[unit] && (first < 0 || m.backlog(unit, now) < m.backlog(first, now)) {
				first = unit
			}
		}
		if first >= 0 {
			units = append(units, first)
		}
	}
	return units
}

// aim chooses the units that receive the state: the shortest queues without the flow's own unit,
// then a spare.
func (m *model) aim(f *modelFlow, now int64) {
	f.targets = nil
	for _, unit := range m.candidates {
		if unit != f.unit {
			f.targets = append(f.targets, unit)
		}
	}
	slices.SortFunc(f.targets, func(a, b int) int {
		return cmp.Or(cmp.Compare(m.backlog(a, now), m.backlog(b, now)), cmp.Compare(a, b))
	})
	for unit := range Units {
		if m.ready[unit] && !m.accepting[unit] {
			f.targets = append(f.targets, unit) // the next spare
			break
		}
	}
	f.targets = f.targets[:min(len(f.targets), int(m.rule.Targets))]
}

func (m *model) move(f *modelFlow, unit int, replica bool, now int64) {
	switch {
	case f.known && unit == f.unit:
		return
	case f.known && replica:
		f.ready = now
	case f.known:
		f.ready = max(f.finish, now) + int64(m.rule.PullNs)
	}
	f.previous, f.unit = f.unit, unit
	if !f.known {
		f.previous = 0xffff
	}
	f.known = true
	f.epoch++
	f.position = 0
}

func (m *model) grow(now int64) {
	least := int64(1 << 60)
	for unit := range Units {
		if m.accepting[unit] {
			least = min(least, m.backlog(unit, now))
		}
	}
	if least <= int64(m.rule.GrowNs) || now-m.grown < int64(m.rule.GrowEveryNs) {
		return
	}
	for unit := range Units {
		if m.ready[unit] && !m.accepting[unit] {
			m.accepting[unit] = true
			m.grown = now
			return
		}
	}
}
