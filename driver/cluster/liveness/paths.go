package liveness

import (
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"pando.run/pando"
)

// A living host may be out of reach from here: helpers pass on its answers. So each host proves its
// own way to every living host, by an answer to a ping of its own.
const (
	pathEvery  = 500 * time.Millisecond
	pathProven = time.Second // an answer proves the way for so long
	pathAsks   = 3           // unanswered pings before the agent's port is asked
	pathPings  = 16          // at once, so that 1,000 hosts cost 32 packets a second
)

// path is the way of this host to a living host. The lock of the prober guards it.
type path struct {
	proven time.Time // by an answer that no helper passed on
	tried  time.Time
	asked  int // pings in a row without an answer
	cut    bool
}

// AckPayload implements memberlist.PingDelegate.
func (p *Prober) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate: a host has answered a direct probe.
func (p *Prober) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reach(pando.HostName(n.Name))
}

// Cut implements edge.Liveness.
func (p *Prober) Cut() (all []pando.HostName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.paths)) {
		if p.paths[name].cut {
			all = append(all, name)
		}
	}
	return all
}

// reach records that a host answers this one. The caller holds the lock.
func (p *Prober) reach(name pando.HostName) {
	w := p.pathTo(name)
	w.proven, w.asked = p.Clock.Now(), 0
	if w.cut {
		w.cut = false
		p.announce()
	}
}

// pathTo returns the way to a host. The caller holds the lock.
func (p *Prober) pathTo(name pando.HostName) *path {
	w := p.paths[name]
	if w == nil {
		w = &path{proven: p.Clock.Now()}
		p.paths[name] = w
	}
	return w
}

// provePaths proves the ways to the living hosts, until Close.
func (p *Prober) provePaths() {
	defer p.wg.Done()
	for pause(p.ctx, pathEvery) == nil {
		var asking sync.WaitGroup
		for _, name := range p.unproven() {
			asking.Go(func() { p.prove(name) })
		}
		asking.Wait()
	}
}

// unproven returns living hosts without a recent proof, those first that were asked the longest ago.
// It forgets the way to a host that does not live: that host is dead, and not cut off.
func (p *Prober) unproven() (all []pando.HostName) {
	alive := map[pando.HostName]bool{}
	for _, n := range p.list.Members() {
		alive[pando.HostName(n.Name)] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, w := range p.paths {
		if _, watched := p.hosts[name]; watched && alive[name] {
			continue
		}
		delete(p.paths, name)
		if w.cut {
			p.announce()
		}
	}
	now := p.Clock.Now()
	for name := range p.hosts {
		if alive[name] && now.Sub(p.pathTo(name).proven) >= pathProven {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b pando.HostName) int {
		return p.paths[a].tried.Compare(p.paths[b].tried)
	})
	all = all[:min(len(all), pathPings)]
	for _, name := range all {
		p.paths[name].tried = now
	}
	return all
}

// prove asks a living host by this host's own way. The host is cut off if it answers neither pings
// nor at its agent's port.
func (p *Prober) prove(name pando.HostName) {
	p.mu.Lock()
	to, port := &net.UDPAddr{IP: p.hosts[name].AsSlice(), Port: p.Port}, p.ports[name]
	p.mu.Unlock()
	_, err := p.list.Ping(string(name), to)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.reach(name)
		return
	}
	if w := p.pathTo(name); w.asked < pathAsks {
		w.asked++
		return
	}
	p.mu.Unlock()
	answers, err := p.answers(p.ctx, name, port)
	p.mu.Lock()
	switch w := p.pathTo(name); {
	case err != nil || p.ctx.Err() != nil: // nothing was asked
	case answers:
		p.reach(name)
	case !w.cut:
		w.cut = true
		p.announce()
	}
}
