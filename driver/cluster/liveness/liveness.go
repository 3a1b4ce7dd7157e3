// Package liveness finds dead hosts by probes between agents: SWIM with indirect probes and the
// health awareness of Lifeguard, by hashicorp/memberlist over an authenticated transport.
//
// It never acts on a verdict. A host is not dead while its agent's port answers: if the kernel
// refuses connections there, only the agent has ended, and the kernel steers on.
package liveness

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// The times of the probes. A host probes one other host per probeEvery, in a shuffled round. A host
// that answers neither it nor three helpers is suspected. It has suspicionMult * probeEvery to
// object (times the decimal logarithm of the number of hosts, from 10 hosts on).
const (
	probeEvery    = 80 * time.Millisecond
	probeWait     = 50 * time.Millisecond // for the direct answer; the rest is for the helpers
	gossipEvery   = 50 * time.Millisecond
	suspicionMult = 3
	suspicionMax  = 2 // times the time to object, until other hosts confirm the suspicion
	exchangeEvery = 30 * time.Second
	reclaimAfter  = 5 * time.Second // a dead host may return with another address
)

// The times of the attempts to meet hosts that are not alive, and of the questions to them.
const (
	meetEvery    = time.Second
	meetAtOnce   = 8                      // hosts per attempt
	answerWait   = 100 * time.Millisecond // for the kernel
	handshakeMax = 300 * time.Millisecond // for the agent
	questionGap  = 200 * time.Millisecond // between two questions to a silent host
	answeredGap  = 2 * time.Second        // to one that answers: its agent ended, or its build is old
	strangerMin  = 5                      // unanswered questions to a host that was never met
)

// Config describes the prober of one host.
type Config struct {
	Own     pando.HostName
	Address netip.Addr // of this host, in its record
	Listen  netip.Addr // zero: Address
	Port    int        // of every host; 0: pando.LivenessPort
	// Key seals the packets. All members have the same, from the authority of the cluster.
	Key []byte
	// Listener accepts streams of members at the port.
	Listener net.Listener
	// ToHost returns the TLS configuration for a stream to a host.
	ToHost func(pando.HostName) *tls.Config
	Clock  pando.Clock
}

// Prober probes the other hosts until Close.
type Prober struct {
	Config
	wire *transport
	list *memberlist.Memberlist
	end  context.CancelFunc
	wg   sync.WaitGroup
	ctx  context.Context

	mu      sync.Mutex
	hosts   map[pando.HostName]netip.Addr
	ports   map[pando.HostName]string             // of their agents: address:port
	known   map[netip.Addr]bool                   // their addresses
	lost    map[pando.HostName]context.CancelFunc // the probes get no answer; ends the questions
	dead    map[pando.HostName]bool               // of them, those that answer no question
	paths   map[pando.HostName]*path              // to living hosts
	changed chan struct{}
	hurry   chan struct{} // has an element when there are hosts to meet
}

var _ edge.Liveness = (*Prober)(nil)

// Open begins to answer probes. Watch names the hosts to probe.
func Open(c Config) (*Prober, error) {
	c.Port = cmp.Or(c.Port, pando.LivenessPort)
	if !c.Listen.IsValid() {
		c.Listen = c.Address
	}
	p := &Prober{
		Config: c, hosts: map[pando.HostName]netip.Addr{},
		lost: map[pando.HostName]context.CancelFunc{}, dead: map[pando.HostName]bool{},
		paths: map[pando.HostName]*path{}, changed: make(chan struct{}), hurry: make(chan struct{}, 1),
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	var err error
	if p.wire, err = listen(c, p.isWatched); err != nil {
		return nil, err
	}
	m := memberlist.DefaultLANConfig()
	m.Name, m.Transport = string(c.Own), p.wire
	m.BindAddr, m.AdvertiseAddr = c.Address.String(), c.Address.String()
	m.BindPort, m.AdvertisePort = c.Port, c.Port
	m.ProbeInterval, m.ProbeTimeout = probeEvery, probeWait
	m.GossipInterval, m.PushPullInterval = gossipEvery, exchangeEvery
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = suspicionMult, suspicionMax
	m.DisableTcpPings, m.EnableCompression = true, false
	m.TCPTimeout, m.DeadNodeReclaimTime = time.Second, reclaimAfter
	m.Logger = log.New(io.Discard, "", 0) // the verdicts are logged by the agent
	m.Events, m.Alive, m.Ping = p, p, p
	if p.list, err = memberlist.Create(m); err != nil {
		return nil, errors.Join(fmt.Errorf("probe the other hosts: %w", err), p.wire.Shutdown())
	}
	p.wg.Add(2)
	go p.meet()
	go p.provePaths()
	return p, nil
}

// Close ends the probes without a farewell: the kernel of this host steers on.
func (p *Prober) Close() error {
	p.end()
	err := p.list.Shutdown()
	p.wg.Wait()
	return err
}

// Watch implements edge.Liveness.
func (p *Prober) Watch(hosts []pando.Host) {
	next, known := make(map[pando.HostName]netip.Addr, len(hosts)), map[netip.Addr]bool{}
	ports := make(map[pando.HostName]string, len(hosts))
	for _, h := range hosts {
		u, err := url.Parse(h.Endpoint)
		if h.Name != p.Own && h.Address.IsValid() && err == nil && u.Host != "" {
			next[h.Name], known[h.Address], ports[h.Name] = h.Address, true, u.Host
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if maps.Equal(next, p.hosts) && maps.Equal(ports, p.ports) {
		return
	}
	p.hosts, p.known, p.ports = next, known, ports
	for name := range p.lost {
		if _, ok := next[name]; !ok {
			p.forgive(name)
		}
	}
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}

// Dead implements edge.Liveness.
func (p *Prober) Dead() []pando.HostName {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.dead))
}

// Changed implements edge.Liveness.
func (p *Prober) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Forged implements edge.Liveness.
func (p *Prober) Forged() uint64 {
	return p.wire.forged.Load() + p.wire.unknown.total(p.Clock.Now(), p.isWatched)
}

// isWatched reports whether an address is that of a watched host.
func (p *Prober) isWatched(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[a]
}

// NotifyAlive lets only watched hosts in, at their own address. A member may gossip about others.
func (p *Prober) NotifyAlive(n *memberlist.Node) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := netip.AddrFromSlice(n.Addr)
	if name := pando.HostName(n.Name); name == p.Own || ok && p.hosts[name] == a.Unmap() {
		return nil
	}
	return fmt.Errorf("%w: %s at %s", pando.ErrForbidden, n.Name, n.Addr)
}

// NotifyJoin implements memberlist.EventDelegate: a host is alive.
func (p *Prober) NotifyJoin(n *memberlist.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgive(pando.HostName(n.Name))
}

// NotifyUpdate implements memberlist.EventDelegate.
func (p *Prober) NotifyUpdate(*memberlist.Node) {}

// NotifyLeave implements memberlist.EventDelegate: the probes of a host failed.
func (p *Prober) NotifyLeave(n *memberlist.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.suspect(pando.HostName(n.Name), 1)
}

// suspect begins to question a host that answers no probe. It is dead after so many unanswered
// questions in a row. The caller holds the lock.
func (p *Prober) suspect(name pando.HostName, unanswered int) {
	if _, watched := p.ports[name]; !watched || p.lost[name] != nil || p.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	p.lost[name] = cancel
	p.wg.Add(1)
	go p.question(ctx, name, unanswered)
}

// question asks whether the agent's port of a host answers, until the host answers the probes.
func (p *Prober) question(ctx context.Context, name pando.HostName, unanswered int) {
	defer p.wg.Done()
	for silent := 0; ctx.Err() == nil; {
		p.mu.Lock()
		port := p.ports[name] // its agent may have another one now
		p.mu.Unlock()
		gap := questionGap
		answers, err := p.answers(ctx, name, port)
		switch {
		case err != nil: // nothing was asked
		case answers:
			silent, gap = 0, answeredGap
		default:
			silent++
		}
		p.mu.Lock()
		if dead := silent >= unanswered; ctx.Err() == nil && p.dead[name] != dead {
			p.dead[name] = dead
			if !dead {
				delete(p.dead, name)
			}
			p.announce()
		}
		p.mu.Unlock()
		_ = pause(ctx, gap)
	}
}

// answers reports whether an agent's port answers in any way: its kernel refuses the connection, or
// the agent takes part in a handshake. The kernel of a frozen agent accepts the connection, and
// then there is no answer. An error says that this host could not ask: it has no descriptor, port or
// memory left, which says nothing about the other host.
func (p *Prober) answers(
	ctx context.Context, name pando.HostName, port string,
) (answers bool, err error) {
	d := net.Dialer{Timeout: answerWait}
	c, err := d.DialContext(ctx, "tcp", port)
	for _, own := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS,
		unix.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return false, err
		}
	}
	if err != nil {
		return errors.Is(err, unix.ECONNREFUSED), nil
	}
	defer c.Close()
	// A deadline of the connection would be on the clock of the runtime, and p.Clock may differ.
	ctx, cancel := context.WithTimeout(ctx, handshakeMax)
	defer cancel()
	config := &tls.Config{ServerName: string(name)}
	if p.ToHost != nil {
		config = p.ToHost(name)
	}
	err = tls.Client(c, config).HandshakeContext(ctx)
	return !errors.Is(err, context.DeadlineExceeded), nil
}

// forgive ends the verdict about a host. The caller holds the lock.
func (p *Prober) forgive(name pando.HostName) {
	if cancel := p.lost[name]; cancel != nil {
		cancel()
		delete(p.lost, name)
	}
	if p.dead[name] {
		delete(p.dead, name)
		p.announce()
	}
}

// announce wakes the callers of Changed. The caller holds the lock.
func (p *Prober) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// meet joins the hosts that are watched and not alive: at the start, after a partition, and hosts
// that were away for long. A host of an earlier build answers no probes, but its agent's port
// answers, so it is never called dead.
func (p *Prober) meet() {
	defer p.wg.Done()
	for next := 0; ; {
		select {
		case <-p.ctx.Done():
			return
		case <-p.hurry:
		case <-time.After(meetEvery):
		}
		strangers := p.strangers()
		for range min(meetAtOnce, len(strangers)) {
			at := strangers[next%len(strangers)]
			next++
			if _, err := p.list.Join([]string{at}); err == nil {
				continue
			}
			name, _, _ := strings.Cut(at, "/")
			p.mu.Lock()
			p.suspect(pando.HostName(name), strangerMin)
			p.mu.Unlock()
		}
	}
}

// strangers returns the watched hosts that are not alive, as memberlist names them.
func (p *Prober) strangers() (out []string) {
	alive := map[string]bool{}
	for _, n := range p.list.Members() {
		alive[n.Name] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.hosts)) {
		if !alive[string(name)] {
			out = append(out, string(name)+"/"+net.JoinHostPort(p.hosts[name].String(),
				strconv.Itoa(p.Port)))
		}
	}
	return out
}
