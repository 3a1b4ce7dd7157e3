package group

import (
	"context"
	"encoding/json"
	"math/bits"

	"pando.run/pando"
)

// Status is the report of a group: the sum of its units' reports, and its own part.
type Status struct {
	pando.UnitStatus
	Group Members `json:"group"`
}

// Members is the part of the status that only a group has.
type Members struct {
	Units     int                  `json:"units"`
	Accepting int                  `json:"accepting"`
	UnitBits  uint64               `json:"unit_bits"`
	Counts    Counts               `json:"counts"`
	Failure   string               `json:"failure,omitempty"`  // why the newest start of a unit failed
	Steering  *pando.FlowletCounts `json:"steering,omitempty"` // nil: unknown
}

// Counts are the counters of a group.
type Counts struct {
	UnitTicks uint64 `json:"unit_ticks"` // sum over all ticks of the units that took or held packets
	Ticks     uint64 `json:"ticks"`
	Started   uint64 `json:"started"`
	Died      uint64 `json:"died"`   // without being asked to end
	Left      uint64 `json:"left"`   // because they were not needed
	Failed    uint64 `json:"failed"` // could not be started
}

// request asks the loop for a snapshot, or to end if snapshot is nil.
type request struct{ snapshot chan snapshot }

// snapshot is the group's own part of its status, with the units to query for theirs.
type snapshot struct {
	status Status
	units  []pando.Unit
}

// Answer answers a request at the group's control socket: status or stop. It returns the answer to
// stop when the group is completely gone. It returns nil if ctx ends first. Any goroutine may call
// it while Run runs.
func (g *Group) Answer(ctx context.Context, words string) []byte {
	if words != "status" && words != "stop" {
		return []byte(`{"error":"ask for status or stop"}`)
	}
	status, ok := g.status(ctx)
	if !ok || words == "stop" && !g.stop(ctx) {
		return nil
	}
	text, err := json.Marshal(status)
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// status returns the status of the group. It queries the units outside the loop.
func (g *Group) status(ctx context.Context) (status Status, ok bool) {
	r := request{make(chan snapshot, 1)}
	select {
	case g.asked <- r:
	case <-g.ended:
		return status, false
	case <-ctx.Done():
		return status, false
	}
	s := <-r.snapshot
	for _, u := range s.units {
		if report, err := u.Status(); err == nil {
			add(&s.status.UnitStatus, report)
		}
	}
	return s.status, true
}

// stop ends the group and waits until it is gone.
func (g *Group) stop(ctx context.Context) bool {
	select {
	case g.asked <- request{}:
	case <-g.ended:
	case <-ctx.Done():
		return false
	}
	select {
	case <-g.ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// snapshot returns the loop's part of the status.
func (g *Group) snapshot() (s snapshot) {
	s.status = Status{
		UnitStatus: pando.UnitStatus{
			Name: g.Name, Tenant: g.Tenant, PID: g.PID, Epoch: 1, Devices: g.Devices,
			Functions: []pando.UnitBill{}, Traps: []string{}, Fates: [][2]any{},
			Handover: map[string]int64{},
		},
		Group: Members{UnitBits: g.UnitBits, Counts: g.counts, Units: g.serving(), Failure: g.lastFailed},
	}
	if g.Limits != (pando.Resources{}) {
		s.status.Limits = &pando.UnitLimits{MemoryBytes: g.Limits.MemoryBytes, CPUs: g.Limits.CPUs}
	}
	if counts, err := g.Flowlets.Counts(); err == nil {
		s.status.Group.Steering = &counts
	}
	if _, accepting, err := g.Flowlets.Demand(); err == nil {
		s.status.Group.Accepting = bits.OnesCount64(accepting)
	}
	for id := range g.units {
		if p := g.units[id].process; p != nil {
			s.units = append(s.units, p)
		}
	}
	account(&s.status.UnitStatus, &g.gone)
	return s
}

// add adds the status of a running unit. The latency of the group is that of its slowest unit.
func add(whole, s *pando.UnitStatus) {
	account(whole, s)
	for word, count := range s.Handover {
		whole.Handover[word] += count
	}
	whole.Handover["unit"] = 0
	for n := range whole.LatencyNS {
		whole.LatencyNS[n] = max(whole.LatencyNS[n], s.LatencyNS[n])
	}
	whole.Flows += s.Flows
	whole.Seconds = max(whole.Seconds, s.Seconds)
}

// account adds the work of a unit that runs or has left.
func account(whole, s *pando.UnitStatus) {
	for _, f := range s.Functions[min(len(whole.Functions), len(s.Functions)):] {
		whole.Functions = append(whole.Functions, pando.UnitBill{Function: f.Function})
	}
	for n, f := range s.Functions {
		sum := &whole.Functions[n]
		sum.Packets, sum.Bytes = sum.Packets+f.Packets, sum.Bytes+f.Bytes
		sum.Fuel, sum.Trapped = sum.Fuel+f.Fuel, sum.Trapped+f.Trapped
	}
	for n, fate := range s.Fates {
		if len(whole.Fates) <= n {
			whole.Fates = append(whole.Fates, [2]any{fate[0], float64(0)})
		}
		count, _ := fate[1].(float64)
		before, _ := whole.Fates[n][1].(float64)
		whole.Fates[n][1] = before + count
	}
	whole.Lost, whole.Unsent = whole.Lost+s.Lost, whole.Unsent+s.Unsent
	whole.Traps = append(whole.Traps, s.Traps...)
}
