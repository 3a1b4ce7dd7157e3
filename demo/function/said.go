package function

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The fields of the output of `pando fn … -o json` that the demo reads. They have the names of that
// output.
type (
	// sent is the progress of the generator.
	sent struct {
		Last                         bool
		Planned, Packets, Sent, Late uint64
		Bytes                        uint64
		LatestMicros                 uint64  `json:"latest_us"`
		BeginNanos                   uint64  `json:"begin_ns"`
		Seconds                      float64 `json:"seconds"`
		NotTaken                     uint64  `json:"not_taken_by_the_device"`
		Copies                       uint32
		Speed                        float64
		StaggerMillis                float64 `json:"stagger_ms"`
	}
	// came is the report of the receiver, for an interval or for the whole run.
	came struct {
		Last           bool
		AtMillis       int64 `json:"at_ms"`
		Packets, Bytes uint64
		Others         uint64
		LatencyNanos   [4]uint64 `json:"latency_ns"` // p50, p75, p90, p99
		Twice, Overrun uint64
		Losses         []loss
	}
	// loss is a number of missing packets that were sent between two moments.
	loss struct {
		Packets   uint64
		FromNanos uint64 `json:"from_ns"`
		ToNanos   uint64 `json:"to_ns"`
	}
	// unit is the status of a unit.
	unit struct {
		Name, State string
		// Set if the entry is a group, which is listed among its units.
		Group     *struct{ Accepting int }
		PID       int
		Epoch     uint32
		Flows     int
		Lost      uint64 // no room in its ring
		Unsent    uint64 // no room in the next device
		Functions []billed
	}
	billed struct {
		Tenant, Function              string
		Packets, Bytes, Fuel, Trapped uint64
	}
	// invoice is the bill per tenant and function.
	invoice struct {
		Owed []struct {
			billed
			Lost, Unsent uint64 // not billed
		}
	}
	// alert is an event of a function on a flow. `pando fn logs` names its code event.
	alert struct {
		Function, Flow string
		Code, Event    uint32
	}
	// tested is the result of a capture that ran without a network.
	tested struct {
		Packets uint64
		Events  []alert
	}
	// capture is the report of `pando fn generate`.
	capture struct{ Packets, Flows, WithContent uint64 }
)

// ask runs a command about the units and decodes its output.
func ask[T any](ctx context.Context, s *stage, args ...string) (v T, err error) {
	out, err := s.unit(ctx, append(args, "-o", "json")...)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return v, fmt.Errorf("read pando fn %s: %w", args[0], err)
	}
	return v, nil
}

// alone returns the listed units without the groups.
func alone(listed []unit) []unit {
	return slices.DeleteFunc(listed, func(u unit) bool { return u.Group != nil || u.Name == name })
}

// found returns the alerts in the units' logs, as flow and rule. It lists each alert once.
func (s *stage) found(ctx context.Context, names []string) (map[string]bool, error) {
	alerts := map[string]bool{}
	for _, name := range names {
		out, err := s.unit(ctx, "logs", name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(out)) {
			var a alert
			if json.Unmarshal([]byte(line), &a) == nil && a.Flow != "" {
				alerts[fmt.Sprintf("%s %d", a.Flow, a.Event)] = true
			}
		}
	}
	return alerts, nil
}

// expected returns the alerts of the same functions on the packets that came out, run without a
// network and without a kill.
func (s *stage) expected(
	ctx context.Context, chain []string, name string,
) (map[string]bool, error) {
	out, err := s.fn(ctx, "unit",
		append([]string{"test", "--pcap", s.dir.File(name), "-o", "json"}, chain...)...)
	if err != nil {
		return nil, err
	}
	var t tested
	if err := json.Unmarshal(out, &t); err != nil {
		return nil, fmt.Errorf("read pando fn test: %w", err)
	}
	alerts := map[string]bool{}
	for _, a := range t.Events {
		alerts[fmt.Sprintf("%s %d", a.Flow, a.Code)] = true
	}
	return alerts, nil
}
