package meter

import (
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// gauge turns the totals of one instance into shares of its limits.
type gauge struct {
	at    time.Time
	last  pando.Strain
	path  pando.PathUse
	queue *pando.LinkQueue // nil: not read yet
	shown pando.Meter
	known bool // two readings exist
}

// read takes a reading. It reports whether the gauge has a measurement.
func (g *gauge) read(now time.Time, s pando.Strain, h pando.Host) bool {
	over := now.Sub(g.at).Seconds()
	switch {
	case g.at.IsZero(), s.CPU < g.last.CPU, over <= 0: // the first one, or another group
		g.at, g.last = now, s
		return g.known
	}
	cpus, memory := s.CPUs, s.MemoryMax
	if cpus <= 0 {
		cpus = h.CPUs
	}
	if memory <= 0 {
		memory = h.Memory
	}
	cpu := share((s.CPU - g.last.CPU).Seconds(), over*cpus)
	pressure := share((s.Throttled - g.last.Throttled).Seconds(), over)
	g.shown.Memory = share(float64(s.Memory), float64(memory))
	g.shown.Stall = g.smooth(g.shown.Stall, share((s.Stalled-g.last.Stalled).Seconds(), over))
	if g.known {
		cpu, pressure = balance.Smooth(g.shown.CPU, cpu), balance.Smooth(g.shown.Pressure, pressure)
	}
	g.shown.CPU, g.shown.Pressure, g.known = cpu, pressure, true
	g.shown.Processors = (g.shown.Processors + (s.CPU-g.last.CPU).Seconds()/over) / 2
	g.at, g.last = now, s
	return true
}

func (g *gauge) smooth(was, now float64) float64 {
	if !g.known {
		return now
	}
	return balance.Smooth(was, now)
}

// travel takes a reading of the connections. Without a sample the former round trip time stays:
// nothing has contradicted it.
func (g *gauge) travel(now pando.PathUse) {
	was := g.path
	g.path = now
	if now.Samples < was.Samples || now.Resent < was.Resent { // another life of the counters
		return
	}
	samples, resent := now.Samples-was.Samples, now.Resent-was.Resent
	g.shown.Loss = g.smooth(g.shown.Loss, share(float64(resent), float64(samples+resent)))
	if samples > 0 {
		g.shown.RTTSeconds = (now.RTT - was.RTT).Seconds() / float64(samples)
	}
}

// wait takes a reading of the queue of the link. Its device drops packets if it is full, so a drop
// since the former reading counts as a full queue.
func (g *gauge) wait(now pando.LinkQueue) {
	full := share(float64(now.BacklogBytes), pando.QueueFull)
	if g.queue != nil && now.Drops > g.queue.Drops {
		full = 1
	}
	g.shown.Queue = g.smooth(g.shown.Queue, full)
	g.queue = &now
}

// share returns a part of a whole, from 0 to 1.
func share(part, whole float64) float64 {
	if !(whole > 0) {
		return 0
	}
	return min(max(part/whole, 0), 1)
}

// queuesRest is the least time between two readings of the queues, in durations of a reading. A
// reading lists every device of the host: 24 µs each. So readings take at most 1 % of a processor,
// and a host with 200 instances reads its queues twice a second.
const queuesRest = 100
