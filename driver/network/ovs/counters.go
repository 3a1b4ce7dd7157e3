package ovs

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"pando.run/pando"
)

// flow is one flow as the switch prints it.
type flow struct {
	kind           kind
	low            uint32
	table          int
	packets, bytes uint64
	idle, age      float64           // seconds
	match          map[string]string // by field; a protocol has its own name as the field
}

// flows reads flows of the switch: those of a filter such as "table=10".
func (d *Driver) flows(ctx context.Context, filter string) ([]flow, error) {
	text, err := d.openflow(ctx, "", "dump-flows", "--no-names", filter)
	if err != nil {
		return nil, err
	}
	var out []flow
	for line := range strings.Lines(text) {
		f, ok, err := parse(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, f)
		}
	}
	return out, nil
}

// parse reads one line of `ovs-ofctl dump-flows`. ok is false for other lines. A number that it cannot
// read is an error: the flow would count as idle, or as none.
func parse(line string) (f flow, ok bool, err error) {
	line, _, ok = strings.Cut(line, "actions=")
	if !ok || !strings.HasPrefix(line, "cookie=0x") {
		return f, false, nil
	}
	f.match = map[string]string{}
	for _, field := range strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "cookie":
			var n uint64
			n, err = strconv.ParseUint(strings.TrimPrefix(value, "0x"), 16, 64)
			f.kind, f.low = kind(n>>32), uint32(n)
		case "table":
			f.table, err = strconv.Atoi(value)
		case "n_packets":
			f.packets, err = strconv.ParseUint(value, 10, 64)
		case "n_bytes":
			f.bytes, err = strconv.ParseUint(value, 10, 64)
		case "idle_age":
			f.idle, err = strconv.ParseFloat(value, 64)
		case "duration":
			f.age, err = strconv.ParseFloat(strings.TrimSuffix(value, "s"), 64)
		default:
			f.match[name] = value
		}
		if err != nil {
			return f, false, fmt.Errorf("read %s of a flow of the switch: %w", name, err)
		}
	}
	return f, true, nil
}

// ofKind reads the flows of a kind.
func (d *Driver) ofKind(ctx context.Context, k kind) ([]flow, error) {
	return d.flows(ctx, fmt.Sprintf("cookie=0x%08x00000000/0xffffffff00000000", uint32(k)))
}

// Drops implements pando.Steering.
func (d *Driver) Drops(ctx context.Context) (pando.Drops, error) {
	out := pando.Drops{Packets: map[pando.DropReason]uint64{}}
	all, err := d.ofKind(ctx, kindDrop)
	if err != nil {
		return out, fmt.Errorf("read why packets were dropped: %w", err)
	}
	for _, why := range dropReasons {
		out.Packets[why] = 0
	}
	for _, f := range all {
		if int(f.low) < len(dropReasons) {
			out.Packets[dropReasons[f.low]] += f.packets
		}
	}
	return out, nil
}

// traffic returns the counters of each port.
func (d *Driver) traffic(ctx context.Context) (map[uint16]pando.EndpointCounters, error) {
	out := map[uint16]pando.EndpointCounters{}
	for _, k := range []kind{kindNew, kindDeliver, kindEnd} {
		all, err := d.ofKind(ctx, k)
		if err != nil {
			return nil, fmt.Errorf("read the steering counters: %w", err)
		}
		for _, f := range all {
			c := out[uint16(f.low)]
			switch {
			case k == kindNew:
				c.Flows += f.packets
			case k == kindEnd:
				c.Ends += f.packets
			}
			if k == kindDeliver || k == kindEnd && f.low&endTo != 0 {
				c.Packets, c.Bytes = c.Packets+f.packets, c.Bytes+f.bytes
			}
			out[uint16(f.low)] = c
		}
	}
	return out, nil
}

// Counters implements pando.Steering. They lag by up to a second: the switch counts in its cache.
func (d *Driver) Counters(ctx context.Context) ([]pando.EndpointCounters, error) {
	by, err := d.traffic(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []pando.EndpointCounters
	for key, s := range d.services {
		for i, port := range s.Ports {
			c := by[port]
			c.Service, c.Instance = key, i
			out = append(out, c)
		}
	}
	return out, nil
}

// Ends implements pando.Steering.
func (d *Driver) Ends(ctx context.Context, s pando.ServiceKey, i pando.InstanceID) (uint64, error) {
	d.mu.Lock()
	var port uint16
	if of := d.services[s]; of != nil {
		port = of.Ports[i]
	}
	d.mu.Unlock()
	if port == 0 {
		return 0, nil
	}
	ends := fmt.Sprintf("cookie=0x%08x%08x/0xffffffff0000ffff", uint32(kindEnd), port)
	all, err := d.flows(ctx, ends)
	if err != nil {
		return 0, fmt.Errorf("read how many flows of %s have ended: %w", i, err)
	}
	var n uint64
	for _, f := range all {
		n += f.packets
	}
	return n, nil
}
