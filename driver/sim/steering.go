package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
)

// Steering keeps a host's tables, and flows that a test opens and closes.
type Steering struct {
	mu       sync.Mutex
	tables   map[pando.ServiceKey]pando.SteeringTable
	rankings map[pando.ServiceKey]pando.Ranking
	flows    map[pando.InstanceID]int
	total    map[pando.InstanceID]uint64
	ended    map[pando.InstanceID]uint64
	broken   int
	knocks   chan pando.ServiceKey
	faults   map[string]int // number of next calls that fail, by name; below 0: all
	calls    map[string]int
}

// NewSteering returns a host's steering.
func NewSteering() *Steering {
	return &Steering{
		tables: map[pando.ServiceKey]pando.SteeringTable{}, flows: map[pando.InstanceID]int{},
		total: map[pando.InstanceID]uint64{}, rankings: map[pando.ServiceKey]pando.Ranking{},
		ended: map[pando.InstanceID]uint64{}, faults: map[string]int{}, calls: map[string]int{},
		knocks: make(chan pando.ServiceKey, 64),
	}
}

// Fail makes the next n calls of a method fail, by its name: Publish, Connect, Neighbours,
// Withdraw, Score, Sweep, or Flows or Remove of a sandbox. Below zero: all of them, until the next
// Fail.
func (s *Steering) Fail(method string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[method] = n
}

// Calls returns the number of calls of a method of Fail.
func (s *Steering) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Endpoints returns the endpoints in the table of a service.
func (s *Steering) Endpoints(k pando.ServiceKey) []pando.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tables[k].Endpoints)
}

// called counts a call and returns its error.
func (s *Steering) called(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
	left := s.faults[method]
	if left == 0 {
		return nil
	}
	if left > 0 {
		s.faults[method]--
	}
	return fmt.Errorf("%s: %w", method, errInjected)
}

// errInjected is the fault that Fail makes.
var errInjected = errors.New("a fault of the test")

// Open begins a flow to a service and returns its instance: the one on this host with the fewest
// flows for its weight.
func (s *Steering) Open(k pando.ServiceKey) (pando.InstanceID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	best, found := pando.Endpoint{}, false
	for _, e := range s.tables[k].Endpoints {
		if e.Weight > 0 && !e.Remote.IsValid() && (!found ||
			s.flows[e.Instance]*best.Weight < s.flows[best.Instance]*e.Weight) {
			best, found = e, true
		}
	}
	if found {
		s.flows[best.Instance]++
		s.total[best.Instance]++
	}
	return best.Instance, found
}

// Knock is a first packet to a service. It is lost unless the service sleeps.
func (s *Steering) Knock(k pando.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[k]
	takes := slices.ContainsFunc(t.Endpoints, func(e pando.Endpoint) bool { return e.Weight > 0 })
	if t.Asleep && !takes {
		s.knocks <- k
	}
}

// Knocks implements pando.Steering.
func (s *Steering) Knocks() <-chan pando.ServiceKey { return s.knocks }

// End closes a flow of an instance.
func (s *Steering) End(i pando.InstanceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flows[i] > 0 {
		s.flows[i]--
		s.ended[i]++
	}
}

// Broken returns the number of flows that lost their endpoint while they were open.
func (s *Steering) Broken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// FlowsOf returns the number of an instance's flows.
func (s *Steering) FlowsOf(i pando.InstanceID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[i]
}

// Takes reports whether a table sends new flows to an instance.
func (s *Steering) Takes(i pando.InstanceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		for _, e := range t.Endpoints {
			if e.Instance == i && e.Weight > 0 {
				return true
			}
		}
	}
	return false
}

// Publish replaces a table. Flows of endpoints that left the table break.
func (s *Steering) Publish(_ context.Context, t pando.SteeringTable) error {
	if len(t.Endpoints) > pando.EndpointsMax {
		return fmt.Errorf("publish %s: %w: %d endpoints, at most %d",
			t.Service, pando.ErrTooLarge, len(t.Endpoints), pando.EndpointsMax)
	}
	if err := s.called("Publish"); err != nil {
		return err
	}
	t.Endpoints = slices.Clone(t.Endpoints)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(t.Service, t)
	return nil
}

// replace sets a table. An empty table ends the service. The caller holds the lock.
func (s *Steering) replace(k pando.ServiceKey, t pando.SteeringTable) {
	for _, e := range s.tables[k].Endpoints {
		if !slices.ContainsFunc(t.Endpoints, func(n pando.Endpoint) bool {
			return n.Instance == e.Instance
		}) {
			s.broken += s.flows[e.Instance]
			delete(s.flows, e.Instance)
		}
	}
	s.tables[k] = t
}

func (s *Steering) reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tables)
	clear(s.flows)
}

// Withdraw removes a service.
func (s *Steering) Withdraw(_ context.Context, k pando.ServiceKey) error {
	if err := s.called("Withdraw"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(k, pando.SteeringTable{})
	delete(s.tables, k)
	delete(s.rankings, k)
	return nil
}

// Neighbours changes nothing: every host of a simulation reaches every instance.
func (s *Steering) Neighbours(context.Context, []pando.Host) error { return s.called("Neighbours") }

// Published lists the services.
func (s *Steering) Published(context.Context) ([]pando.ServiceKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.tables), pando.ServiceKey.Compare), nil
}

// Connect does nothing: there is no link.
func (s *Steering) Connect(
	context.Context, pando.Link, []pando.Port, netip.Addr, netip.Addr,
) error {
	return s.called("Connect")
}

// Disconnect does nothing.
func (*Steering) Disconnect(context.Context, pando.Link) error { return nil }

// Score keeps the newest ranking of a service.
func (s *Steering) Score(_ context.Context, k pando.ServiceKey, r pando.Ranking) error {
	if err := s.called("Score"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rankings[k] = r
	return nil
}

// Ranking returns the newest ranking of a service.
func (s *Steering) Ranking(k pando.ServiceKey) pando.Ranking {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rankings[k]
}

// Sweep returns the open flows.
func (s *Steering) Sweep(context.Context) (pando.SweepReport, error) {
	if err := s.called("Sweep"); err != nil {
		return pando.SweepReport{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return pando.SweepReport{Flows: maps.Clone(s.flows)}, nil
}

// Drops returns none: no packet is simulated.
func (*Steering) Drops(context.Context) (pando.Drops, error) { return pando.Drops{}, nil }

// Ends returns the number of flows that a test has closed.
func (s *Steering) Ends(_ context.Context, _ pando.ServiceKey, i pando.InstanceID) (uint64, error) {
	if err := s.called("Ends"); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[i], nil
}

// Counters returns flow counts only.
func (s *Steering) Counters(context.Context) ([]pando.EndpointCounters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []pando.EndpointCounters
	for k, t := range s.tables {
		for _, e := range t.Endpoints {
			out = append(out, pando.EndpointCounters{
				Service: k, Instance: e.Instance, Flows: s.total[e.Instance], At: time.Now(),
			})
		}
	}
	return out, nil
}
