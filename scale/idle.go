package scale

import (
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// idle finds the services that traffic has left (scale.idle).
type idle struct {
	packets map[pando.InstanceID]float64
	since   time.Time // of the last packet or flow; zero: not known
}

// step asks that the only instance leaves after a time without packets and flows. An instance
// without a reading is not idle. Without a metric, further instances leave by the same rule, the
// youngest first.
func (d *idle) step(s pando.Scale, instances []pando.Instance, now Sample) Wish {
	serving := Serving(instances)
	if serving == 0 || Capacity(instances) > serving || s.By != pando.ByNothing && serving > 1 {
		d.since = time.Time{}
		return Wish{}
	}
	packets, busy := map[pando.InstanceID]float64{}, d.since.IsZero()
	for _, i := range instances {
		if !i.Phase.TakesFlows() {
			continue
		}
		n, known := now.Packets[i.ID]
		was, before := d.packets[i.ID]
		packets[i.ID] = n
		busy = busy || !known || !before || n != was || now.Open[i.ID] > 0
	}
	d.packets = packets
	if busy {
		d.since = now.At
		return Wish{}
	}
	quiet := now.At.Sub(d.since)
	if quiet < pando.Seconds(s.IdleSeconds) {
		return Wish{}
	}
	d.since = time.Time{}
	leaves, _ := Youngest(instances)
	return Wish{Verb: pando.VerbHalt, Instance: leaves.ID, Reason: fmt.Sprintf(
		"no packet and no connection for %s (scale.idle): the next packet starts an instance",
		span.Seconds(s.IdleSeconds)), Inputs: map[string]float64{
		"quiet_seconds": quiet.Seconds(), "idle_seconds": s.IdleSeconds,
	}}
}
