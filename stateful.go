package pando

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ServiceKind is the kind of a service.
type ServiceKind string

// Stateful is the kind of a service of ordinals. Each has a name, a host and volumes of its own,
// and its successor keeps them. The zero value is a service of equal instances.
const Stateful ServiceKind = "stateful"

// OrdinalsMax bounds the ordinals of a stateful service. Each host follows their addresses.
const OrdinalsMax = 64

// Hooks are commands of a stateful service. Each runs inside the sandbox of an instance, with its
// volumes, and within SecondsMax.
type Hooks struct {
	// Bootstrap is the argv that starts the first ordinal of all, in place of the command. The others
	// then join it. After a crash of all, the ordinal with the newest position starts with it.
	Bootstrap []string `json:"bootstrap,omitempty"`
	// Recover prints the position of the ordinal in its last line: UUID:NUMBER. It runs before the
	// program, after no ordinal was left.
	Recover []string `json:"recover,omitempty"`
	// Joined exits with 0 once the ordinal has the data of the others. It is ready no sooner.
	Joined []string `json:"joined,omitempty"`
	// Quorum is how many positions are enough after a crash of all, once the hosts of the others are
	// away. 0: all of them.
	Quorum int `json:"quorum,omitempty"`
	// SecondsMax is the time for one run of a hook, except bootstrap: 30.
	SecondsMax float64 `json:"seconds_max,omitempty"`
}

// StartMode is control's order to an instance of a stateful service.
type StartMode string

// These are the orders. The zero value starts the command of the spec.
const (
	StartRecover   StartMode = "recover"   // report the position, then wait for another order
	StartBootstrap StartMode = "bootstrap" // start the hook bootstrap: it is the first
	StartJoin      StartMode = "join"      // start the command: others run already
)

// Stateful reports whether the instances of the service are no copies of each other.
func (s Spec) Stateful() bool { return s.Kind == Stateful }

// Run returns the words of the program that an order starts.
func (s Spec) Run(m StartMode) []string {
	switch {
	case m == StartBootstrap && len(s.Hooks.Bootstrap) > 0:
		return slices.Clone(s.Hooks.Bootstrap)
	case m == StartRecover:
		return slices.Clone(s.Hooks.Recover)
	}
	return s.Argv()
}

// OrdinalName returns the name of an ordinal of a service, such as db-0. Names count from 0, and
// ordinals from 1.
func OrdinalName(s ServiceName, ordinal int) string { return fmt.Sprintf("%s-%d", s, ordinal-1) }

// OrdinalDomain returns the name of an ordinal in DNS, such as db-0.db.pando.
func OrdinalDomain(s ServiceKey, ordinal int) string {
	name := OrdinalName(s.Name, ordinal) + "." + string(s.Name)
	if s.Tenant != DefaultTenant && s.Tenant != "" {
		name += "." + string(s.Tenant)
	}
	return name + ".pando"
}

// LeaderLabel is the label of the leader's name in DNS, such as leader.db.pando.
const LeaderLabel = "leader"

// LeaderOf returns the ordinal with the highest term of some, or nil if none claims to lead. Among
// equals it is the lowest.
func LeaderOf(names []Named) (leads *Named) {
	for n := range names {
		if t := names[n].Term; t > 0 && (leads == nil || t > leads.Term) {
			leads = &names[n]
		}
	}
	return leads
}

// OrdinalOf returns the ordinal of a name that OrdinalName returned.
func OrdinalOf(s ServiceName, name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, string(s)+"-")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 || n >= OrdinalsMax || OrdinalName(s, n+1) != name {
		return 0, false
	}
	return n + 1, true
}

// Position is how far the data of an ordinal went: a number in the history that a UUID names. The
// ordinal with the highest number has every acknowledged write.
type Position struct {
	History string
	Number  int64
}

// noHistory is the UUID of data that never was part of a group.
const noHistory = "00000000-0000-0000-0000-000000000000"

// positionBytesMax bounds the text of a position in a record.
const positionBytesMax = 200

// ParsePosition reads UUID:NUMBER. A number of -1 means that the position is unknown, unless the
// UUID is zero: then there is no data.
func ParsePosition(text string) (Position, error) {
	history, number, ok := strings.Cut(text, ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || history == "" || strings.ContainsAny(history, " \t\"") ||
		len(text) > positionBytesMax {
		return Position{}, fmt.Errorf("%w: %.200q is no position: want UUID:NUMBER, such as "+
			"6b0f8f2a-1c1e-11ee-9a2b-0242ac120002:1042", ErrInvalid, text)
	}
	return Position{history, n}, nil
}

// Empty reports whether the ordinal has no data.
func (p Position) Empty() bool { return p.History == noHistory }

// String returns UUID:NUMBER.
func (p Position) String() string { return fmt.Sprintf("%s:%d", p.History, p.Number) }

// Roll is the part of a stateful service in its record.
type Roll struct {
	// Formed is set once the first ordinal has served. From then on, no ordinal bootstraps but after a
	// crash of all.
	Formed bool `json:"formed,omitempty"`
	// Hosts has the host of each ordinal's volumes, in order. "": the ordinal has none yet.
	Hosts []HostName `json:"hosts,omitempty"`
	// Force is the ordinal that an operator chose to bootstrap. 0: none.
	Force int `json:"force,omitempty"`
}

// Host returns the host with the volumes of an ordinal, or "".
func (r *Roll) Host(ordinal int) HostName {
	if r == nil || ordinal < 1 || ordinal > len(r.Hosts) {
		return ""
	}
	return r.Hosts[ordinal-1]
}

// With returns a roll in which an ordinal has its volumes on a host.
func (r *Roll) With(ordinal int, h HostName) *Roll {
	next := Roll{}
	if r != nil {
		next = *r
	}
	next.Hosts = slices.Clone(next.Hosts)
	for len(next.Hosts) < ordinal {
		next.Hosts = append(next.Hosts, "")
	}
	next.Hosts[ordinal-1] = h
	return &next
}

// Recovery is a request of an operator about a stateful service that waits for one.
type Recovery struct {
	// ForceFrom is the name of the ordinal that bootstraps, such as db-2, or its number from 0. Later
	// writes of the others are lost.
	ForceFrom string `json:"force_from,omitempty" maxLength:"80"`
	// Move is the ordinal that starts anew on another host, without its volumes.
	Move string `json:"move,omitempty" maxLength:"80"`
}

// Recoveries are the requests of operators about stateful services.
type Recoveries interface {
	// Recover ends the wait of a stateful service. ErrRefused: the service runs, or the host of the
	// ordinal still has its volumes.
	Recover(ctx context.Context, s ServiceKey, r Recovery, by Asker) (ServiceStatus, error)
}
