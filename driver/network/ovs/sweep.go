package ovs

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"pando.run/pando"
)

const (
	// A handshake counts as a flow of its endpoint for this long.
	openingSeconds = 3
	// A silent UDP flow does not hold up a drain after this long.
	udpLiveSeconds = 30
)

// Sweep implements pando.Steering. The instances' sockets are the truth, and the learned flows are
// a cache of them.
func (d *Driver) Sweep(ctx context.Context) (pando.SweepReport, error) {
	report := pando.SweepReport{Flows: map[pando.InstanceID]int{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.sweep(ctx, &report); err != nil {
		return report, fmt.Errorf("sweep the learned flows: %w", err)
	}
	return report, nil
}

func (d *Driver) sweep(ctx context.Context, report *pando.SweepReport) error {
	if err := d.restore(ctx); err != nil {
		return err
	}
	learned, err := d.ofKind(ctx, kindKnown)
	if err != nil {
		return err
	}
	byPort := map[uint16][]flow{}
	for _, f := range learned {
		if f.table == tableKnown {
			byPort[uint16(f.low)] = append(byPort[uint16(f.low)], f)
		}
	}
	names := map[uint16]pando.InstanceID{}
	for _, s := range d.services {
		for i, port := range s.Ports {
			names[port] = i
		}
	}
	var lines []string
	for _, l := range d.links {
		i, ok := names[l.Port]
		if !ok {
			continue
		}
		sockets, err := d.Stack.Connections(l.Link.Netns)
		if err != nil {
			continue // its namespace is gone, and the agent will see to it
		}
		n, over := l.count(byPort[l.Port], sockets)
		report.Flows[i] += n
		report.Closed += len(over)
		lines = append(lines, over...)
		lines = append(lines, l.known(sockets)...)
	}
	return d.bundle(ctx, lines)
}

// count returns the number of live flows of an instance, and the commands that forget the others.
// It removes the connections with a learned flow from sockets.
func (p plug) count(learned []flow, sockets map[pando.Connection]bool) (live int, over []string) {
	for c, done := range sockets {
		if c.Protocol != pando.TCP || c.Local.Addr() != p.VIP4 && c.Local.Addr() != p.VIP6 {
			delete(sockets, c) // to its own address, or the server of a datagram
		} else if done {
			live++
		}
	}
	for _, f := range learned {
		c, match, ok := p.connection(f)
		if !ok {
			continue
		}
		done, exists := sockets[c]
		delete(sockets, c)
		switch {
		case c.Protocol == pando.UDP && f.idle <= udpLiveSeconds:
			live++
		case c.Protocol == pando.UDP, done:
		case f.age < openingSeconds:
			live++ // a handshake
		case !exists:
			over = append(over, "flow delete_strict "+match)
		}
	}
	return live, over
}

// connection returns the socket of a learned flow at the instance, and the flow's own match.
func (p plug) connection(f flow) (c pando.Connection, match string, ok bool) {
	for _, fam := range families {
		for _, protocol := range []pando.Protocol{pando.TCP, pando.UDP} {
			word := fam.protocol(protocol)
			if _, is := f.match[word]; !is {
				continue
			}
			src, err1 := netip.ParseAddr(f.match[fam.src])
			dst, err2 := netip.ParseAddr(f.match[fam.dst])
			from, err3 := strconv.ParseUint(f.match["tp_src"], 10, 16)
			at, err4 := strconv.ParseUint(f.match["tp_dst"], 10, 16)
			if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
				return c, "", false
			}
			c.Protocol = protocol
			c.Client = netip.AddrPortFrom(src, uint16(from))
			c.Local = netip.AddrPortFrom(dst, p.target(protocol, uint16(at)))
			return c, p.match(c, uint16(at)), true
		}
	}
	return c, "", false
}

// match returns the match of the learned flow of a connection.
func (p plug) match(c pando.Connection, published uint16) string {
	f := families[0]
	if c.Client.Addr().Is6() {
		f = families[1]
	}
	return fmt.Sprintf("table=%d,priority=10,%s,%s=%s,%s=%s,tp_src=%d,tp_dst=%d", tableKnown,
		f.protocol(c.Protocol), f.src, c.Client.Addr(), f.dst, c.Local.Addr(), c.Client.Port(), published)
}

func (p plug) target(protocol pando.Protocol, published uint16) uint16 {
	for _, port := range p.Ports {
		if port.Protocol == protocol && port.Published == published {
			return port.Target
		}
	}
	return published
}

// known returns the commands that learn the connections of an instance.
func (p plug) known(sockets map[pando.Connection]bool) (lines []string) {
	for c, done := range sockets {
		if !done || c.Protocol != pando.TCP || c.Local.Addr() != p.VIP4 && c.Local.Addr() != p.VIP6 {
			continue
		}
		for _, port := range p.Ports {
			if port.Protocol == pando.TCP && port.Target == c.Local.Port() {
				lines = append(lines, fmt.Sprintf("flow add %s,cookie=%s,idle_timeout=%d,"+
					"actions=load:%d->NXM_NX_REG0[0..15]", p.match(c, port.Published),
					cookie(kindKnown, uint32(p.Port)), tcpIdleSeconds, p.Port))
			}
		}
	}
	return lines
}

// found returns the commands that learn the connections of endpoints that are new to this driver. A
// host that takes a VIP over has none of their flows, and neither has a restarted switch.
func (d *Driver) found(was, now *service) (lines []string, err error) {
	if d.Mode == Group {
		return nil, nil
	}
	for _, e := range now.Table.Endpoints {
		l := d.links[e.Link.Host]
		if l == nil || was != nil && was.Ports[e.Instance] == l.Port {
			continue
		}
		sockets, err := d.Stack.Connections(l.Link.Netns)
		if err != nil {
			return nil, fmt.Errorf("look for the connections of %s: %w", e.Instance, err)
		}
		lines = append(lines, l.known(sockets)...)
	}
	return lines, nil
}

// mendEvery is the time between two looks at the switch.
const mendEvery = time.Second

// Mend puts the rules into the switch again after its restart, until ctx ends.
func (d *Driver) Mend(ctx context.Context, clock pando.Clock, log *slog.Logger) error {
	for pando.Sleep(ctx, clock, mendEvery) == nil {
		d.mu.Lock()
		err := d.restore(ctx)
		d.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			log.Error("look after the switch: it is tried again", "error", err)
		}
	}
	return ctx.Err()
}

// restore puts all rules into the switch again if it was restarted and has none.
func (d *Driver) restore(ctx context.Context) error {
	all, err := d.flows(ctx, fmt.Sprintf("table=%d", tableStay))
	if err != nil || len(all) > 0 {
		return err
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	var lines []string
	for _, s := range d.services {
		fresh, err := d.found(nil, s)
		if err != nil {
			return err
		}
		lines = append(lines, fresh...)
	}
	return d.bundle(ctx, lines)
}
