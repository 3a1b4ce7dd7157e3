package ovs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"pando.run/pando"
)

// Connect implements pando.Steering.
func (d *Driver) Connect(ctx context.Context, l pando.Link, ports []pando.Port, vip4,
	vip6 netip.Addr) error {
	if err := unambiguous(ports); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, err := cast(d.PinDir, l)
	if err != nil {
		return err
	}
	number, err := d.port(ctx, name)
	if err != nil {
		return err
	}
	now := &connected{plug: plug{Link: l, Ports: ports, VIP4: vip4, VIP6: vip6, Port: number}}
	now.Rules = now.rules(d.Mode)
	former := rules{}
	if was := d.links[l.Host]; was != nil {
		former = was.Rules
	}
	record := func(r rules) any { return connected{now.plug, r} }
	if err := d.change(ctx, d.linkFile(l.Host), former, now.Rules, record, nil); err != nil {
		return fmt.Errorf("connect the link %s: %w", l.Host, err)
	}
	d.links[l.Host] = now
	return nil
}

// Prepare makes the device of a sandbox that has no instance yet.
func (d *Driver) Prepare(l pando.Link) error {
	_, err := cast(d.PinDir, l)
	return err
}

// unambiguous refuses two ports with one target: their replies would be equal.
func unambiguous(ports []pando.Port) error {
	back := map[pando.Port]uint16{}
	for _, p := range ports {
		if p.Protocol != pando.TCP && p.Protocol != pando.UDP {
			return fmt.Errorf("%w: port %d has protocol %q", pando.ErrInvalid, p.Published, p.Protocol)
		}
		at := pando.Port{Target: p.Target, Protocol: p.Protocol}
		if other, ok := back[at]; ok && other != p.Published {
			return fmt.Errorf("%w: ports %d and %d both lead to %d/%s: replies would be ambiguous; "+
				"publish one of them only", pando.ErrInvalid, other, p.Published, p.Target, p.Protocol)
		}
		back[at] = p.Published
	}
	return nil
}

// change turns former rules into wanted ones. Before, the record lists both, so that a killed agent
// leaves no rule without a record.
func (d *Driver) change(
	ctx context.Context, file string, former, want rules, record func(rules) any, before []string,
	after ...string,
) error {
	both := maps.Clone(want)
	for key, r := range former {
		if _, ok := both[key]; !ok {
			both[key] = r
		}
	}
	if len(both) > len(want) {
		if err := store(file, record(both)); err != nil {
			return err
		}
	}
	lines := append(append(before, former.difference(want)...), after...)
	if err := d.bundle(ctx, lines); err != nil {
		return err
	}
	return store(file, record(want))
}

// Disconnect implements pando.Steering.
func (d *Driver) Disconnect(ctx context.Context, l pando.Link) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was := d.links[l.Host]; was != nil {
		lines := append(was.Rules.difference(nil), forgetFlows(was.Port)...)
		if err := d.bundle(ctx, lines); err != nil {
			return fmt.Errorf("disconnect the link %s: %w", l.Host, err)
		}
	}
	name := shadowOf(l)
	if err := d.unplug(ctx, name); err != nil {
		return fmt.Errorf("disconnect the link %s: %w", l.Host, err)
	}
	delete(d.links, l.Host)
	if err := lift(d.PinDir, name); err != nil {
		return err
	}
	return forgetFile(d.linkFile(l.Host))
}

// forgetFlows returns the commands that remove the learned flows of a port.
func forgetFlows(port uint16) []string {
	known := cookie(kindKnown, uint32(port))
	return []string{
		fmt.Sprintf("flow delete table=%d,cookie=%s/-1", tableKnown, known),
		fmt.Sprintf("flow delete table=%d,cookie=%s/-1", tableAnswer, known),
	}
}

// Publish implements pando.Steering.
func (d *Driver) Publish(ctx context.Context, t pando.SteeringTable) error {
	if t.By != "" && !slices.Contains(pando.BalanceKinds, t.By) {
		return fmt.Errorf("%w: there is no policy %q", pando.ErrInvalid, t.By)
	}
	if len(t.Endpoints) > slotsMax {
		return fmt.Errorf("%w: %d endpoints, and a bundle of Open vSwitch has at most %d",
			pando.ErrTooLarge, len(t.Endpoints), slotsMax)
	}
	out := leaveOut(&t)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.publish(ctx, t); err != nil {
		return fmt.Errorf("publish the steering of %s: %w", t.Service, err)
	}
	if len(out) > 0 {
		return fmt.Errorf("publish the steering of %s: %w", t.Service, pando.Unreached(out))
	}
	return nil
}

// errAlone is the reason for every endpoint on another host.
var errAlone = fmt.Errorf("%w: --steer ovs has no tunnel to other hosts; use --steer ebpf on both",
	pando.ErrUnsupported)

// leaveOut takes the endpoints of other hosts from a table. It returns their hosts.
func leaveOut(t *pando.SteeringTable) map[netip.Addr]error {
	out := map[netip.Addr]error{}
	t.Endpoints = slices.DeleteFunc(slices.Clone(t.Endpoints), func(e pando.Endpoint) bool {
		if e.Remote.IsValid() {
			out[e.Remote] = errAlone
		}
		return e.Remote.IsValid()
	})
	return out
}

func (d *Driver) publish(ctx context.Context, t pando.SteeringTable) error {
	was := d.services[t.Service]
	now := &service{Table: t, Ports: map[pando.InstanceID]uint16{}}
	if was == nil {
		now.Number = d.number()
	} else {
		now.Number, now.Scores = was.Number, was.Scores
	}
	for _, e := range t.Endpoints {
		l := d.links[e.Link.Host]
		if l == nil {
			return fmt.Errorf("%w: instance %s is not connected", pando.ErrNotReady, e.Instance)
		}
		now.Ports[e.Instance] = l.Port
	}
	return d.enforce(ctx, was, now)
}

// number returns an unused number of a service.
func (d *Driver) number() uint32 {
	for n := uint32(1); ; n++ {
		if _, used := d.numbers[n]; !used {
			return n
		}
	}
}

// enforce puts a service into force in place of its former state.
func (d *Driver) enforce(ctx context.Context, was, now *service) error {
	shares := now.shares()
	now.Rules = serviceRules(now.Table, now.Number, d.Mode, shares)
	former, before := rules{}, []string(nil)
	var after []string
	if was != nil {
		former, now.Group = was.Rules, was.Group
		for i, port := range was.Ports {
			if now.Ports[i] != port {
				after = append(after, forgetFlows(port)...)
			}
		}
	}
	fresh, err := d.found(was, now)
	if err != nil {
		return err
	}
	after = append(after, fresh...)
	if d.Mode == Group && len(slots(shares)) > 0 {
		if group := buckets(now.Number, now.Table.By, shares); group != now.Group {
			before, now.Group = append(before, group), group
		}
	}
	record := func(r rules) any { s := *now; s.Rules = r; return s }
	err = d.change(ctx, d.serviceFile(now.Table.Service), former, now.Rules, record, before, after...)
	if err != nil {
		return err
	}
	d.services[now.Table.Service], d.numbers[now.Number] = now, now.Table.Service
	if was != nil && drains(was, now) {
		return d.settle(ctx) // a decision for a used pair of ports may be cached
	}
	return nil
}

// drains reports whether an endpoint that took new flows takes none now.
func drains(was, now *service) bool {
	weights := map[pando.InstanceID]int{}
	for _, e := range now.Table.Endpoints {
		weights[e.Instance] = e.Weight
	}
	return slices.ContainsFunc(was.Table.Endpoints, func(e pando.Endpoint) bool {
		return e.Weight > 0 && weights[e.Instance] <= 0
	})
}

// shares returns the endpoints with the weights of the policy.
func (s *service) shares() []share {
	out := make([]share, 0, len(s.Table.Endpoints))
	scored := s.Table.By == pando.ByScore || s.Table.By == pando.ByHaven
	excluded := 0
	for _, e := range s.Table.Endpoints {
		if s.Scores[e.Instance].Excluded {
			excluded++
		}
	}
	for _, e := range s.Table.Endpoints {
		weight := max(e.Weight, 0)
		switch score, ok := s.Scores[e.Instance]; {
		case !scored || !ok || weight == 0:
		case score.Excluded && excluded < len(s.Table.Endpoints):
			weight = 0
		default:
			weight = max(1, int(float64(weight)*scoreUnit/(scoreUnit/scoreSpread+max(0, score.Value))))
		}
		out = append(out, share{s.Ports[e.Instance], weight})
	}
	return out
}

// A score divides the weight: an idle endpoint (0) gets scoreSpread times as many new flows as one
// with a score of about 1.
const (
	scoreUnit   = 1.0
	scoreSpread = 8.0
)

// Score implements pando.Steering. A switch has no scores, so they become weights.
func (d *Driver) Score(ctx context.Context, s pando.ServiceKey, r pando.Ranking) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.services[s]
	if was == nil {
		return nil
	}
	now := *was
	now.Scores = map[pando.InstanceID]pando.Score{}
	for _, one := range r.Scores {
		if _, ok := now.Ports[one.Instance]; ok {
			now.Scores[one.Instance] = one
		}
	}
	if maps.Equal(now.Scores, was.Scores) {
		return nil
	}
	if slices.Equal(slots(now.shares()), slots(was.shares())) {
		d.services[s] = &now
		return nil
	}
	if err := d.enforce(ctx, was, &now); err != nil {
		return fmt.Errorf("score the instances of %s: %w", s, err)
	}
	return nil
}

// Withdraw implements pando.Steering.
func (d *Driver) Withdraw(ctx context.Context, s pando.ServiceKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.services[s]
	if was == nil {
		return nil
	}
	lines := was.Rules.difference(nil)
	if was.Group != "" {
		lines = append(lines, fmt.Sprintf("group delete group_id=%d", was.Number))
	}
	for _, port := range was.Ports {
		lines = append(lines, forgetFlows(port)...)
	}
	if err := d.bundle(ctx, lines); err != nil {
		return fmt.Errorf("withdraw the steering of %s: %w", s, err)
	}
	delete(d.services, s)
	delete(d.numbers, was.Number)
	return forgetFile(d.serviceFile(s))
}

// Published implements pando.Steering.
func (d *Driver) Published(context.Context) ([]pando.ServiceKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.services)), nil
}

// Neighbours implements pando.Steering. This driver steers one host.
func (d *Driver) Neighbours(_ context.Context, hosts []pando.Host) error {
	if len(hosts) > 0 {
		return errAlone
	}
	return nil
}
