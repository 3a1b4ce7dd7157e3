package pando

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Endpoints is the compact record of one service: all that an agent of any host needs in order to
// steer it. Control writes it in the commit that changes it. A change of a service thus costs every
// agent one small event. No agent follows intents, decisions or the instances of other hosts.
type Endpoints struct {
	Service Service    `json:"service"`         // its record of the same commit
	Ports   []Port     `json:"ports,omitempty"` // of its target revision
	Scale   Scale      `json:"scale,omitzero"`  // likewise
	Hosts   []HostName `json:"hosts,omitempty"` // those with an instance, sorted
	Seats   []Seat     `json:"seats,omitempty"` // its instances, oldest first
}

// Seat is one instance in the record of its service.
type Seat struct {
	Instance InstanceID
	Host     int // its place in Hosts
	// Phase is placed until the instance is ready, and draining from the end of its rotation. The
	// steps in between concern its own host only.
	Phase    Phase
	Revision int
	Weight   int
	Since    time.Time // of the phase, to the millisecond; zero if it leaves
}

// EndpointsOf returns the record of a service with these instances, oldest first. spec is that of
// its target.
func EndpointsOf(svc Service, spec Spec, instances []Instance) Endpoints {
	e := Endpoints{Service: svc, Ports: spec.Ports, Scale: spec.Scale}
	for _, i := range instances {
		e.Hosts = append(e.Hosts, i.Host)
	}
	slices.Sort(e.Hosts)
	e.Hosts = slices.Compact(e.Hosts)
	for _, i := range instances {
		host, _ := slices.BinarySearch(e.Hosts, i.Host)
		s := Seat{Instance: i.ID, Host: host, Revision: i.Revision, Weight: i.Weight, Phase: i.Phase}
		switch {
		case i.Phase == PhasePlaced, i.Phase == PhaseStarting:
			s.Phase, s.Since = PhasePlaced, i.Born
		case i.Phase == PhaseWarm:
			s.Since = i.Born
		case i.Phase.TakesFlows():
			s.Since = i.Since
		default:
			s.Phase = PhaseDraining
		}
		if !s.Since.IsZero() {
			s.Since = s.Since.Truncate(time.Millisecond).UTC()
		}
		e.Seats = append(e.Seats, s)
	}
	return e
}

// On reports whether an instance of the service is on a host.
func (e Endpoints) On(h HostName) bool {
	_, ok := slices.BinarySearch(e.Hosts, h)
	return ok
}

// TakesFlows reports whether an instance on the host at a place in Hosts takes new flows.
func (e Endpoints) TakesFlows(host int) bool {
	return slices.ContainsFunc(e.Seats, func(s Seat) bool {
		return s.Host == host && s.Phase.TakesFlows()
	})
}

// HostOf returns the host of a seat.
func (e Endpoints) HostOf(s Seat) HostName { return e.Hosts[s.Host] }

// Check returns nil if the record is consistent, else the reason to refuse it.
func (e Endpoints) Check() error {
	if !slices.IsSorted(e.Hosts) {
		return fmt.Errorf("%w: endpoints of %s: its hosts are not sorted", ErrInvalid,
			e.Service.ServiceKey)
	}
	for _, s := range e.Seats {
		if s.Host < 0 || s.Host >= len(e.Hosts) || !s.Phase.Known() {
			return fmt.Errorf("%w: endpoints of %s: instance %s is on host %d of %d, in phase %q",
				ErrInvalid, e.Service.ServiceKey, s.Instance, s.Host, len(e.Hosts), s.Phase)
		}
	}
	return nil
}

// MarshalJSON writes a seat as an array, because a service may have thousands.
func (s Seat) MarshalJSON() ([]byte, error) {
	since := int64(0)
	if !s.Since.IsZero() {
		since = s.Since.UnixMilli()
	}
	if !plain(string(s.Instance)) || !plain(string(s.Phase)) {
		return json.Marshal([]any{s.Instance, s.Host, s.Phase, s.Revision, s.Weight, since})
	}
	b := make([]byte, 0, len(s.Instance)+len(s.Phase)+48)
	b = append(append(append(b, `["`...), s.Instance...), `",`...)
	b = append(strconv.AppendInt(b, int64(s.Host), 10), `,"`...)
	b = append(append(b, s.Phase...), `",`...)
	b = append(strconv.AppendInt(b, int64(s.Revision), 10), ',')
	b = append(strconv.AppendInt(b, int64(s.Weight), 10), ',')
	return append(strconv.AppendInt(b, since, 10), ']'), nil
}

// plain reports whether a text stands in JSON as it is.
func plain(s string) bool {
	for n := range len(s) {
		if c := s[n]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// UnmarshalJSON reads the array of MarshalJSON. It ignores later fields of a newer build.
func (s *Seat) UnmarshalJSON(b []byte) error {
	if s.read(b) {
		return nil
	}
	var since int64
	fields := []any{&s.Instance, &s.Host, &s.Phase, &s.Revision, &s.Weight, &since}
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if len(raw) < len(fields) {
		return fmt.Errorf("%w: a seat has %d fields, want %d", ErrInvalid, len(raw), len(fields))
	}
	for n, f := range fields {
		if err := json.Unmarshal(raw[n], f); err != nil {
			return err
		}
	}
	s.at(since)
	return nil
}

func (s *Seat) at(milliseconds int64) {
	if s.Since = (time.Time{}); milliseconds != 0 {
		s.Since = time.UnixMilli(milliseconds).UTC()
	}
}

// read reads a seat in the very form of MarshalJSON, and reports whether it is in that form. An
// agent reads thousands of seats.
func (s *Seat) read(b []byte) bool {
	text := string(b)
	if len(text) < 2 || text[0] != '[' || text[len(text)-1] != ']' {
		return false
	}
	fields := strings.Split(text[1:len(text)-1], ",")
	if len(fields) != 6 {
		return false
	}
	word := func(t string) (string, bool) {
		inner := len(t) >= 2 && t[0] == '"' && t[len(t)-1] == '"'
		return strings.Trim(t, `"`), inner && plain(t[1:len(t)-1])
	}
	id, ok := word(fields[0])
	phase, known := word(fields[2])
	host, err1 := strconv.Atoi(fields[1])
	revision, err2 := strconv.Atoi(fields[3])
	weight, err3 := strconv.Atoi(fields[4])
	since, err4 := strconv.ParseInt(fields[5], 10, 64)
	if !ok || !known || err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return false
	}
	*s = Seat{
		Instance: InstanceID(id), Host: host, Phase: Phase(phase), Revision: revision, Weight: weight,
	}
	s.at(since)
	return true
}
