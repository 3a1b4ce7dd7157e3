package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

const (
	// A UDP flow has no visible end. It does not hold up a drain after this long without a packet.
	udpIdleMax = 30 * time.Second
	// A UDP flow with answers in both directions keeps its endpoint for this long without a packet.
	udpHeldMax = 3 * time.Minute
	// A TCP flow that has been silent this long is looked up among the instance's sockets.
	tcpIdleLook = 5 * time.Second
	// A handshake counts as a flow of its endpoint for this long (two retransmissions of a SYN). A
	// flood of SYNs therefore delays a drain by at most that time.
	openingMax = 3 * time.Second

	// Of a flow to another host, this host sees one direction and no socket. That host counts it for
	// the drain. It leaves this table after these times without a packet: before a handshake, after
	// an end of its client, and else. The other host reports the end earlier, if no message is lost.
	awayOpeningMax = time.Minute
	awayEndedMax   = 5 * time.Minute
	awayIdleMax    = 135 * time.Minute // above the keepalive of most systems
)

// Sweep implements pando.Steering. The instances' sockets are the truth, and the table is a cache
// of them. Every publication waits for the driver's lock, and a walk over a million flows takes a
// second. Sweep therefore reads the table without the lock.
func (d *Driver) Sweep(context.Context) (pando.SweepReport, error) {
	d.sweeping.Lock()
	defer d.sweeping.Unlock()
	report := pando.SweepReport{Flows: map[pando.InstanceID]int{}}
	if err := d.sweep(&report); err != nil {
		return report, fmt.Errorf("sweep the connection table: %w", err)
	}
	return report, nil
}

// known has the driver's endpoints at the start of a sweep.
type known struct {
	slots []steerEndpoint
	names map[uint32]pando.InstanceID
	netns map[uint32]string
	// straight are the endpoints of this host that drain and may have connections without an entry.
	straight map[uint32]steerStraight
	drains   map[uint32]bool  // endpoints of this host without new flows
	sockets  map[uint32]int32 // straight to each endpoint, from here
	guarded  []int32          // the numbers of guarded flows
	added    int              // the flows that the table ever got
}

// lost reports whether the endpoint of a flow is gone.
func lost(slots []steerEndpoint, f steerFlow) bool {
	at := slots[f.Endpoint%uint32(len(slots))]
	return at.Ifindex == 0 || at.Epoch != f.Epoch
}

// finding is the result of a look at one flow.
type finding int

const (
	lives   finding = iota // it counts
	silent                 // it stays, and does not count
	ended                  // it is deleted
	suspect                // the sockets of its instance decide
)

// look returns what an entry itself says about its flow.
func look(e entry) finding {
	switch {
	case e.protocol != protocols[pando.TCP]:
		switch {
		case e.idle <= udpIdleMax:
			return lives
		case e.held && e.idle <= udpHeldMax:
			return silent
		}
		return ended
	case e.flow.Flags&(flowFIN|flowRST) != 0, e.idle > tcpIdleLook,
		e.flow.Flags&flowUsed == 0 && e.idle > openingMax,
		// It was found again, or not answered: only its socket proves it.
		!e.held && e.flow.Flags&flowEstablished != 0:
		return suspect
	}
	return lives
}

// lookAway returns the finding about a flow to another host. Such a flow never counts here.
func lookAway(e entry) finding {
	most := awayIdleMax
	switch {
	case e.protocol != protocols[pando.TCP]:
		most = udpHeldMax
	case e.flow.Flags&(flowFIN|flowRST) != 0:
		most = awayEndedMax
	case e.flow.Flags&flowUsed == 0:
		most = awayOpeningMax
	}
	if e.idle > most {
		return ended
	}
	return silent
}

// knownTo returns the state of the driver at the start of a sweep, and the live flows by slot.
func knownTo(d *Driver) (k known, live []int32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k = known{slots: slices.Clone(d.index.slots), names: maps.Clone(d.index.names),
		netns: maps.Clone(d.netns), straight: d.straights.draining(), drains: maps.Clone(d.drains)}
	live, err = d.policies.live()
	if err == nil && live != nil {
		k.sockets, err = d.straights.sockets()
	}
	if err == nil {
		k.guarded, err = d.payers.guarded()
	}
	if err == nil {
		k.added, err = d.flows.added()
	}
	return k, live, err
}

func (d *Driver) sweep(report *pando.SweepReport) error {
	then, before, err := knownTo(d)
	if err != nil {
		return err
	}
	steered := map[uint32]int32{} // live flows that this host steers, by slot
	maps.Copy(steered, then.sockets)
	suspects := map[uint32][]entry{}
	var over, orphans []entry
	present, opening := 0, openings{}
	now, err := monotonic()
	if err != nil {
		return err
	}
	d.pauses.begin(time.Duration(now))
	err = d.flows.each(func(e entry) {
		present++
		opening.count(e)
		if lost(then.slots, e.flow) {
			orphans = append(orphans, e)
			return
		}
		found := look(e)
		if then.slots[e.flow.Endpoint].Away != 0 {
			found = lookAway(e)
		} else if then.drains[e.flow.Endpoint] {
			found = d.pauses.look(e, found)
		}
		switch found {
		case ended:
			over = append(over, e)
			return
		case suspect:
			suspects[e.flow.Endpoint] = append(suspects[e.flow.Endpoint], e)
		case lives:
			report.Flows[then.names[e.flow.Endpoint]]++
		}
		if e.flow.Flags&(flowFIN|flowRST) == 0 && e.flow.Room == 0 {
			steered[e.flow.Endpoint]++
		}
	})
	if err != nil {
		return err
	}
	d.pauses.end()
	ends, err := d.flows.ask(then, suspects, report)
	if err != nil {
		return err
	}
	over = append(over, ends...)
	for _, e := range over {
		if e.flow.Flags&(flowFIN|flowRST) == 0 && e.flow.Room == 0 && look(e) == suspect {
			steered[e.flow.Endpoint]--
		}
	}
	if err := d.forgetAll(over, orphans, then.added, present, report); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.policies.correct(before, steered), d.payers.correct(),
		d.payers.correctGuarded(then.guarded, opening), d.flows.noteUnguarded(opening))
}

// ask looks for flows among the sockets of their instances, and counts the connections straight to
// an instance that drains. It returns the flows that are over.
func (t flowTable) ask(then known, suspects map[uint32][]entry, report *pando.SweepReport) (
	over []entry, err error,
) {
	asked := map[uint32]bool{}
	for slot := range suspects {
		asked[slot] = true
	}
	for slot := range then.straight {
		asked[slot] = true
	}
	for slot := range asked {
		name := then.names[slot]
		sockets, err := openConnections(then.netns[slot])
		if way, ok := then.straight[slot]; ok && err != nil {
			report.Flows[name]++ // they are not known, so the drain waits
		} else if ok {
			report.Flows[name] += way.connections(sockets)
		}
		for _, e := range suspects[slot] {
			established, exists := sockets[e.socket()]
			switch {
			case err != nil || established:
				report.Flows[name]++
			case !exists && (!e.reports() || e.idle > reportAfter):
				over = append(over, e)
			}
			if err == nil && established && !e.held {
				if _, err := t.order(orderHold, e); err != nil {
					return over, err
				}
			}
		}
	}
	return over, nil
}

// forgetAll deletes the flows that are over, and those with an endpoint that is still gone.
// The table had added flows in all before it was read, and present ones then.
func (d *Driver) forgetAll(
	over, orphans []entry, added, present int, report *pando.SweepReport,
) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range orphans {
		// A new endpoint may have got the slot while the table was read.
		if lost(d.index.slots, e.flow) {
			over = append(over, e)
		}
	}
	var reported []entry
	for _, e := range over {
		gone, err := d.flows.order(orderForget, e)
		if err != nil {
			return err
		}
		if gone {
			report.Closed++
		}
		if gone && e.reports() {
			reported = append(reported, e)
		}
	}
	if err := d.tunnel.reportEnds(d.index, reported); err != nil {
		return err
	}
	if err := d.tables.trim(); err != nil {
		return err
	}
	n, err := d.flows.evicted(added, present-report.Closed)
	d.evicted = max(d.evicted, n)
	report.Evicted = d.evicted
	return err
}

// added returns how many flows the table ever got.
func (t flowTable) added() (int, error) {
	counts, err := t.counts.sums()
	return int(counts[countAdded]), err
}

// evicted returns how many flows the full table has evicted at least since it was made. The kernel
// does not report evictions, so they are computed: flows added, less those removed, swept and
// present. Flows come and go while the table is read: those added are counted before, and those
// removed after. Otherwise a flow that came meanwhile would look evicted.
func (t flowTable) evicted(added, present int) (int, error) {
	counts, err := t.counts.sums()
	if err != nil {
		return 0, err
	}
	gone := int(counts[countRemoved]) + int(counts[countSwept])
	return max(0, added-gone-present), nil
}
