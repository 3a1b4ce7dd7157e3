package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
)

// Berth is one ordinal of a stateful service: the host with its volumes, and the instance that has
// it.
type Berth struct {
	Ordinal  int
	Host     pando.HostName  // with its volumes, or "" before its first start
	Here     bool            // Host has its lease
	Leaves   bool            // Host takes no instances
	Drained  bool            // Host is one that an operator drains
	Instance *pando.Instance // nil: none
}

// serves reports whether clients and other ordinals reach the ordinal.
func (b Berth) serves() bool {
	return b.Here && b.Instance != nil && b.Instance.Phase.TakesFlows()
}

// reports reports whether the ordinal waits for an order, with or without its position.
func (b Berth) reports() bool {
	return b.Instance != nil && b.Instance.Phase == pando.PhasePlaced &&
		b.Instance.Start == pando.StartRecover
}

// starts reports whether the program of the ordinal is on its way.
func (b Berth) starts() bool {
	return b.Here && b.Instance != nil && !b.reports() && !b.Instance.Phase.Leaving() && !b.serves()
}

// Muster holds the facts of a stateful service: all its ordinals, in order.
type Muster struct {
	Service              pando.ServiceName
	Berths               []Berth
	Formed               bool // the first ordinal has served
	Force                int  // the ordinal that an operator chose to bootstrap; 0: none
	Bootstraps, Recovers bool // its spec has the hooks
	// Quorum is how many positions are enough while the hosts of the others are away. 0: all.
	Quorum int
}

// Step is the next start of a stateful service, or the reason for none.
type Step struct {
	Ordinal int // 0: none starts now
	Start   pando.StartMode
	Why     string
	Blocked bool // only an operator or a returning host changes that
}

func (m Muster) name(ordinal int) string { return pando.OrdinalName(m.Service, ordinal) }

func (m Muster) any(is func(Berth) bool) (Berth, bool) {
	n := slices.IndexFunc(m.Berths, is)
	if n < 0 {
		return Berth{}, false
	}
	return m.Berths[n], true
}

// lost reports whether no ordinal is left to join.
func (m Muster) lost() bool {
	_, serves := m.any(Berth.serves)
	return m.Formed && m.Recovers && !serves
}

// Steady reports whether every ordinal serves, so that one of them may leave.
func (m Muster) Steady() bool {
	return !slices.ContainsFunc(m.Berths, func(b Berth) bool { return !b.serves() })
}

// Next returns the next ordinal to start. Ordinals start one at a time, the lowest first, each on
// the host with its volumes. The first one of all bootstraps. Once no ordinal serves, all report
// their positions at the same time instead, and Elect chooses. Without positions they start at the
// same time: each may wait for the others, as members of RabbitMQ do.
func (m Muster) Next() Step {
	if m.lost() {
		return m.recover()
	}
	_, serves := m.any(Berth.serves)
	together := m.Formed && !serves
	if b, ok := m.any(Berth.starts); ok && !together {
		return Step{Why: fmt.Sprintf("%s starts: one ordinal at a time", m.name(b.Ordinal))}
	}
	var away []Berth
	for _, b := range m.Berths {
		switch {
		case b.Instance != nil && b.Here:
		case b.Host != "" && (!b.Here || b.Leaves):
			away = append(away, b)
			if !m.Formed {
				return m.away(away)
			}
		case together:
			return Step{Ordinal: b.Ordinal, Start: pando.StartJoin,
				Why: "no ordinal serves: all start at the same time"}
		case serves:
			return Step{Ordinal: b.Ordinal, Start: pando.StartJoin}
		case b.Ordinal > 1:
			return Step{Why: fmt.Sprintf("%s waits for %s", m.name(b.Ordinal), m.name(1))}
		default:
			return Step{Ordinal: b.Ordinal, Start: m.first(), Why: "the first of all"}
		}
	}
	return m.away(away)
}

func (m Muster) first() pando.StartMode {
	if m.Bootstraps {
		return pando.StartBootstrap
	}
	return pando.StartJoin
}

// away returns the reason that ordinals on hosts without a lease do not start.
func (m Muster) away(all []Berth) Step {
	if len(all) == 0 {
		return Step{Why: "every ordinal has an instance"}
	}
	b := all[0]
	why := "is away"
	if b.Here && b.Drained {
		return Step{Why: fmt.Sprintf("the volumes of %s are on %s, which is drained: it starts there "+
			"after `pando hosts undrain %[2]s`", m.name(b.Ordinal), b.Host), Blocked: true}
	}
	if b.Here {
		why = "leaves"
	}
	text := fmt.Sprintf("the volumes of %s are on %s, which %s: it starts there when the host is "+
		"back; `pando recover %s --move %d` gives those volumes up", m.name(b.Ordinal), b.Host, why,
		m.Service, b.Ordinal-1)
	return Step{Why: text, Blocked: true}
}

// Strays returns the drains of ordinals that were to join others, of which none serves any more. A
// stray could wait for them until its deadline. It reports its position instead.
func (m Muster) Strays() (moves []Move) {
	if !m.lost() {
		return nil
	}
	for _, b := range m.Berths {
		if b.starts() && b.Instance.Start == pando.StartJoin &&
			b.Instance.Phase.May(pando.PhaseDraining) {
			moves = append(moves, Move{Drain: b.Instance.ID,
				Reason: "the ordinals that it was to join are gone: it reports its position"})
		}
	}
	return moves
}

// recover returns the next ordinal that has to report its position.
func (m Muster) recover() Step {
	if b, ok := m.any(func(b Berth) bool {
		return b.starts() || b.Here && b.Instance != nil && b.Instance.Phase.Leaving()
	}); ok {
		return Step{Why: fmt.Sprintf("%s is %s", m.name(b.Ordinal), b.Instance.Phase)}
	}
	for _, b := range m.Berths {
		if b.Instance == nil && b.Host != "" && b.Here && !b.Leaves {
			return Step{Ordinal: b.Ordinal, Start: pando.StartRecover,
				Why: "no ordinal serves: each reports its position"}
		}
	}
	e := m.Elect()
	return Step{Why: e.Why, Blocked: e.Blocked}
}

// Elect returns the order for an ordinal that reported its position and waits. While another one
// serves, it joins, one at a time. Otherwise the ordinal with the newest position bootstraps, as
// soon as every position is known.
func (m Muster) Elect() Step {
	if b, ok := m.any(Berth.starts); ok {
		return Step{Why: fmt.Sprintf("%s starts: one ordinal at a time", m.name(b.Ordinal))}
	}
	waiting, ok := m.any(Berth.reports)
	if !ok && !m.lost() {
		return Step{Why: "no ordinal waits for an order"}
	}
	if _, serves := m.any(Berth.serves); serves {
		return Step{Ordinal: waiting.Ordinal, Start: pando.StartJoin, Why: "others serve"}
	}
	if m.Force > 0 {
		return m.force()
	}
	known, unknown, away := m.positions()
	enough := m.Quorum > 0 && len(known) >= m.Quorum && away == len(unknown)
	if len(unknown) > 0 && !enough {
		return m.refuse("the position of " + strings.Join(unknown, ", of "))
	}
	ordinal, why := Newest(known)
	if ordinal == 0 {
		return m.refuse(why)
	}
	why = fmt.Sprintf("%s has the newest position, %s", m.name(ordinal), why)
	if len(unknown) > 0 {
		why += fmt.Sprintf(", of %d (hooks.quorum); that of %s", len(known),
			strings.Join(unknown, ", of "))
	}
	return Step{Ordinal: ordinal, Start: m.first(), Why: why}
}

// positions returns the known positions by ordinal, and why others are unknown. away counts the
// unknown ones of absent hosts.
func (m Muster) positions() (known map[int]pando.Position, unknown []string, away int) {
	known = map[int]pando.Position{}
	for _, b := range m.Berths {
		switch p, why := m.position(b); {
		case why != "":
			unknown = append(unknown, why)
			if !b.Here {
				away++
			}
		case b.Host != "":
			known[b.Ordinal] = p
		}
	}
	return known, unknown, away
}

func (m Muster) refuse(why string) Step {
	return Step{Blocked: true, Why: fmt.Sprintf("no ordinal of %s serves, and it is unknown which "+
		"has the newest data: %s; `pando recover %[1]s --force-from N` starts from one, and drops later "+
		"writes of the others", m.Service, why)}
}

// force returns the order for the ordinal that an operator chose.
func (m Muster) force() Step {
	b, ok := m.any(func(b Berth) bool { return b.Ordinal == m.Force && b.reports() })
	if !ok {
		return Step{Why: fmt.Sprintf("%s is to bootstrap, and does not wait for an order yet",
			m.name(m.Force))}
	}
	return Step{Ordinal: b.Ordinal, Start: m.first(), Why: "an operator chose " + m.name(m.Force)}
}

// position returns the position of an ordinal, or the name of an ordinal without one with the
// reason. An ordinal that never started has no data.
func (m Muster) position(b Berth) (p pando.Position, unknown string) {
	name := m.name(b.Ordinal)
	switch {
	case b.Host == "":
		return p, ""
	case !b.Here:
		return p, fmt.Sprintf("%s is unknown, because its host %s is away", name, b.Host)
	case b.Instance == nil || b.Instance.Position == "":
		return p, name + " is not reported yet"
	}
	p, err := pando.ParsePosition(b.Instance.Position)
	switch {
	case err != nil:
		return p, fmt.Sprintf("%s is unreadable (%s)", name, b.Instance.Position)
	case p.Number < 0 && !p.Empty():
		return p, fmt.Sprintf("%s is unknown to itself (%s)", name, p)
	}
	return p, ""
}

// Newest returns the ordinal with the newest of some positions and that position, or 0 and why none
// of them is the newest. Ordinals without data never are, unless all are without. Two histories
// cannot be compared. Among equals the lowest ordinal comes first.
func Newest(positions map[int]pando.Position) (ordinal int, why string) {
	ordinals := make([]int, 0, len(positions))
	for n := range positions {
		ordinals = append(ordinals, n)
	}
	slices.Sort(ordinals)
	best := 0
	for _, n := range ordinals {
		p := positions[n]
		was, ok := positions[best]
		switch {
		case !ok, was.Empty() && !p.Empty():
			best = n
		case p.Empty():
		case p.History != was.History:
			return 0, fmt.Sprintf("the histories %s and %s differ", was.History, p.History)
		case p.Number > was.Number:
			best = n
		}
	}
	if best == 0 {
		return 0, "no ordinal has data"
	}
	return best, positions[best].String()
}

// LeaveLast returns the drain of the highest ordinal above some number, or nil while another
// instance leaves. So ordinals end in reverse order, one at a time.
func LeaveLast(instances []pando.Instance, above int, reason string) []Move {
	last := -1
	for n := range instances {
		i := &instances[n]
		if i.Phase.Leaving() {
			return nil
		}
		if i.Ordinal > above && i.Phase.May(pando.PhaseDraining) &&
			(last < 0 || i.Ordinal > instances[last].Ordinal) {
			last = n
		}
	}
	if last < 0 {
		return nil
	}
	return []Move{{Drain: instances[last].ID, Reason: reason}}
}

// OneByOne returns at most one of some drains. An instance that does not serve leaves first. One
// that serves leaves only while every ordinal does.
func OneByOne(moves []Move, instances []pando.Instance, steady bool) []Move {
	of := map[pando.InstanceID]*pando.Instance{}
	for n := range instances {
		of[instances[n].ID] = &instances[n]
	}
	for _, v := range moves {
		if i := of[v.Drain]; i != nil && !i.Phase.TakesFlows() {
			return []Move{v}
		}
	}
	if !steady || len(moves) == 0 {
		return nil
	}
	return moves[:1]
}
