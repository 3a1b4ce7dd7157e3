// Package meter measures the instances of one host, exchanges measurements with other hosts, and
// turns them into the scores that the steering uses for new flows.
//
// It has one goroutine, and one more for each host that it follows. It rests while no service needs
// a measurement. A measurement is never stored: only the newest one of each instance is kept, and a
// host that falls silent ages out. It never decides how a flow is placed: package balance does.
package meter

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// Service is a service that is balanced or scaled by measurements.
type Service struct {
	Key     pando.ServiceKey
	Balance pando.Balance
	Here    []Local          // its instances on this host
	Takers  []pando.Endpoint // its endpoints on all hosts that take new flows
	Others  []pando.Host     // the other hosts with instances of it
	Hosts   map[pando.InstanceID]pando.HostName
}

// Local is an instance on this host.
type Local struct {
	Instance pando.InstanceID
	Box      pando.Sandbox
	IfIndex  int    // of the host's end of its link
	Device   string // the name of that end
}

// Source is the agent's knowledge. Its methods take the agent's lock and never wait otherwise.
type Source interface {
	// Service returns a service, and whether it still needs measurements.
	Service(s pando.ServiceKey) (Service, bool)
	// Ingress returns the place of this host among all hosts, and their number.
	Ingress() (place, hosts int)
}

// Config holds the drivers of a Meter.
type Config struct {
	Host     pando.Host
	Steering pando.Steering
	Peers    pando.Peers
	Source   Source
	// Link returns the use of this host's busiest uplink since its former call: a share of the speed
	// of the link. Nil, or 0: not known.
	Link func() float64
	// Path returns the experience of the connections of the instance at a link. Nil: not known.
	Path func(ifindex int) pando.PathUse
	// Queues returns the queues of the devices of this host, by name. Nil: not known.
	Queues func() (map[string]pando.LinkQueue, error)
	Clock  pando.Clock
	Log    *slog.Logger
}

// silence is how long a measurement of another host counts, in intervals of the service, and at
// least silenceMin. A silent host may be slow or dead. Its instances then count as average.
const (
	silence    = 10
	silenceMin = time.Second
)

// Meter measures one host. Its methods may be called from any goroutine.
type Meter struct {
	Config
	wake      chan struct{}
	queuesDue time.Time // of the next reading of the queues

	mu     sync.Mutex
	wanted map[pando.ServiceKey]bool
	scores map[pando.ServiceKey][]pando.Score
	judges map[pando.ServiceKey]*balance.Judge
	own    map[pando.InstanceID]*gauge
	now    pando.Meters
	others map[pando.HostName]report
	// following has the ends of the streams from other hosts.
	following map[pando.HostName]context.CancelFunc
	listeners map[chan pando.Meters]bool
	streams   sync.WaitGroup
}

// report is the newest measurement of another host.
type report struct {
	at time.Time // by the clock of this host
	pando.Meters
}

// New returns a meter. Run starts it.
func New(c Config) *Meter {
	return &Meter{
		Config: c, wake: make(chan struct{}, 1), wanted: map[pando.ServiceKey]bool{},
		scores: map[pando.ServiceKey][]pando.Score{}, judges: map[pando.ServiceKey]*balance.Judge{},
		own:       map[pando.InstanceID]*gauge{},
		others:    map[pando.HostName]report{},
		following: map[pando.HostName]context.CancelFunc{}, listeners: map[chan pando.Meters]bool{},
	}
}

// Want starts the measurement of a service. It ends once the source does not want it any more.
func (m *Meter) Want(s pando.ServiceKey) {
	m.mu.Lock()
	was := m.wanted[s]
	m.wanted[s] = true
	m.mu.Unlock()
	if !was {
		m.hurry()
	}
}

func (m *Meter) hurry() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// score computes the scores of one service as this ingress sees them, and hands them to the
// steering.
func (m *Meter) score(ctx context.Context, s Service, now time.Time) {
	load, names := m.loads(s, now), make([]pando.InstanceID, 0, len(s.Takers))
	for _, e := range s.Takers {
		names = append(names, e.Instance)
	}
	scores := balance.Scores(s.Balance.WithDefaults().Weights, names, load)
	raw := slices.Clone(scores)
	m.mu.Lock()
	if m.judges[s.Key] == nil {
		m.judges[s.Key] = &balance.Judge{}
	}
	m.judges[s.Key].Step(now, scores, load)
	for n := range raw { // operators, the scaler and the rank get the value as it is
		raw[n].Excluded = scores[n].Excluded
	}
	m.scores[s.Key] = raw
	m.mu.Unlock()
	if scores == nil || !s.Balance.Scored() {
		return
	}
	r := pando.Ranking{Scores: scores}
	if s.Balance.By == pando.ByHaven {
		place, hosts := m.Source.Ingress()
		r.Order = balance.Rank(raw, balance.From(place, hosts, len(scores)))
	}
	if err := m.Steering.Score(ctx, s.Key, r); err != nil && ctx.Err() == nil {
		m.Log.Warn("new scores are not in force", "service", s.Key, "error", err)
	}
}

// loads returns the loads of the instances of a service that have a fresh measurement.
func (m *Meter) loads(s Service, now time.Time) map[pando.InstanceID]balance.Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[pando.InstanceID]balance.Load{}
	add := func(from pando.Meters, path float64) {
		for _, one := range from.All {
			// A host speaks for its own instances.
			if one.Service == s.Key && s.Hosts[one.Instance] == from.Host {
				out[one.Instance] = balance.Load{
					Bandwidth: path, CPU: one.CPU, Memory: one.Memory, Pressure: one.Pressure,
					Stall: one.Stall, Loss: one.Loss, RTT: share(one.RTTSeconds, pando.RTTFull.Seconds()),
					Queue: one.Queue, Used: one.Processors,
				}
			}
		}
	}
	add(m.now, balance.Path(m.now.Link, m.now.Link, true))
	for _, h := range s.Others {
		v, ok := m.others[h.Name]
		if ok && now.Sub(v.at) <= max(silence*s.Balance.Every(), silenceMin) {
			add(v.Meters, balance.Path(m.now.Link, v.Link, false))
		}
	}
	return out
}

// Scores returns the newest scores of a service as this host sees them. The caller does not change
// them.
func (m *Meter) Scores(s pando.ServiceKey) []pando.Score {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.scores[s]
}

// Of returns the newest measurement of an instance of this host, or false.
func (m *Meter) Of(i pando.InstanceID) (pando.Meter, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.now.All {
		if one.Instance == i {
			return one, true
		}
	}
	return pando.Meter{}, false
}
