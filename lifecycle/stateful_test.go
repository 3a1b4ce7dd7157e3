package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

const (
	history = "6b0f8f2a-1c1e-11ee-9a2b-0242ac120002"
	empty   = "00000000-0000-0000-0000-000000000000"
)

// of returns an instance in a phase, with an order and a position.
func of(phase pando.Phase, start pando.StartMode, position string) *pando.Instance {
	return &pando.Instance{Phase: phase, Start: start, Position: position}
}

func waits(position string) *pando.Instance {
	return of(pando.PhasePlaced, pando.StartRecover, position)
}

// formed returns a formed service with hooks, with an instance per ordinal on a host of its own.
func formed(all ...*pando.Instance) Muster {
	m := Muster{Service: "db", Formed: true, Bootstraps: true, Recovers: true}
	for n, i := range all {
		m.Berths = append(m.Berths, Berth{Ordinal: n + 1, Instance: i, Here: true,
			Host: pando.HostName(fmt.Sprint("h", n+1))})
	}
	return m
}

func TestOrdinalsStartInOrder(t *testing.T) {
	serves := of(pando.PhaseInRotation, pando.StartJoin, "")
	starts := of(pando.PhaseStarting, pando.StartJoin, "")
	born := formed(nil, nil, nil)
	born.Formed = false
	for n := range born.Berths {
		born.Berths[n].Host, born.Berths[n].Here = "", false
	}
	first := born
	first.Berths = append([]Berth{{Ordinal: 1, Host: "h1", Here: true, Instance: starts}},
		born.Berths[1:]...)
	second := first
	second.Berths = append([]Berth{{Ordinal: 1, Host: "h1", Here: true, Instance: serves}},
		born.Berths[1:]...)
	away := formed(serves, serves, nil)
	away.Berths[2].Here = false
	leaves := formed(serves, nil, serves)
	leaves.Berths[1].Leaves = true
	plain := formed(nil, nil, nil)
	plain.Recovers, plain.Bootstraps = false, false
	beside := formed(starts, nil, nil)
	beside.Recovers, beside.Bootstraps = false, false
	for name, c := range map[string]struct {
		m       Muster
		ordinal int
		start   pando.StartMode
		why     string
		blocked bool
	}{
		"the first of all bootstraps": {born, 1, pando.StartBootstrap, "the first", false},
		"the others wait for it":      {first, 0, "", "db-0 starts", false},
		"they join one at a time":     {second, 2, pando.StartJoin, "", false},
		"a crashed one joins again":   {formed(serves, nil, serves), 2, pando.StartJoin, "", false},
		"one at a time":               {formed(serves, starts, nil), 0, "", "db-1 starts", false},
		"a volume waits for its host": {away, 0, "", "db-2 are on h3, which is away", true},
		"a leaving host takes none":   {leaves, 0, "", "db-1 are on h2, which leaves", true},
		"without hooks, together":     {plain, 1, pando.StartJoin, "all start at the same", false},
		"the second beside the first": {beside, 2, pando.StartJoin, "all start at the same", false},
		"none serves: each reports":   {formed(nil, nil, nil), 1, pando.StartRecover, "", false},
		"all at the same time":        {formed(waits(""), nil, nil), 2, pando.StartRecover, "", false},
		"a draining one still has data": {formed(of(pando.PhaseDraining, "", ""), nil), 0, "",
			"draining", false},
		"one that starts may be the one": {formed(starts, nil, nil), 0, "", "db-0 is starting", false},
	} {
		s := c.m.Next()
		if s.Ordinal != c.ordinal || s.Start != c.start || s.Blocked != c.blocked ||
			!strings.Contains(s.Why, c.why) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestTheNewestBootstraps(t *testing.T) {
	at := func(n int64) *pando.Instance {
		return waits(pando.Position{History: history, Number: n}.String())
	}
	forced := formed(at(4), nil, at(9))
	forced.Berths[1].Here, forced.Force = false, 1
	gone := formed(at(4), nil, at(9))
	gone.Berths[1].Here = false
	fresh := formed(at(4), nil, at(4))
	fresh.Berths[1].Host = ""
	for name, c := range map[string]struct {
		m       Muster
		ordinal int
		start   pando.StartMode
		why     string
	}{
		"the highest":              {formed(at(4), at(9), at(8)), 2, pando.StartBootstrap, ":9"},
		"the lowest of equals":     {formed(at(9), at(9), at(8)), 1, pando.StartBootstrap, ":9"},
		"one is silent":            {formed(at(4), waits(""), at(8)), 0, "", "db-1 is not reported"},
		"one is not there":         {formed(at(4), nil, at(8)), 0, "", "db-1 is not reported"},
		"a host is away":           {gone, 0, "", "db-1 is unknown, because its host h2 is away"},
		"an operator chose":        {forced, 1, pando.StartBootstrap, "an operator chose db-0"},
		"never started":            {fresh, 1, pando.StartBootstrap, ":4"},
		"unknown to itself":        {formed(at(4), at(-1)), 0, "", "db-1 is unknown to itself"},
		"an empty one is no rival": {formed(waits(empty+":-1"), at(0)), 2, pando.StartBootstrap, ":0"},
		"all are empty": {formed(waits(empty+":-1"), waits(empty+":-1")), 1,
			pando.StartBootstrap, ""},
		"two histories": {formed(at(4), waits("other:9")), 0, "", "differ"},
		"others serve: join in turn": {formed(of(pando.PhaseReady, "", ""), at(4), at(5)), 2,
			pando.StartJoin, "others serve"},
		"one at a time": {formed(of(pando.PhaseReady, "", ""), of(pando.PhaseStarting, "", ""), at(5)),
			0, "", "db-1 starts"},
	} {
		s := c.m.Elect()
		if s.Ordinal != c.ordinal || s.Start != c.start || !strings.Contains(s.Why, c.why) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// A joiner would wait for others of which none serves. It is drained and reports its position.
func TestAStrayReportsItsPosition(t *testing.T) {
	named := func(id pando.InstanceID, phase pando.Phase, start pando.StartMode) *pando.Instance {
		i := of(phase, start, "")
		i.ID = id
		return i
	}
	joins := named("a", pando.PhaseStarting, pando.StartJoin)
	serves := named("b", pando.PhaseInRotation, pando.StartJoin)
	young, plain, away := formed(joins, nil, nil), formed(joins, nil, nil), formed(joins, nil, nil)
	young.Formed, plain.Recovers, away.Berths[0].Here = false, false, false
	for name, c := range map[string]struct {
		m    Muster
		want string
	}{
		"none serves":            {formed(joins, nil, nil), "a"},
		"others report":          {formed(joins, waits(""), waits(history+":3")), "a"},
		"one serves":             {formed(joins, serves, nil), ""},
		"the first of a crash":   {formed(named("c", pando.PhaseStarting, pando.StartBootstrap)), ""},
		"it waits for an order":  {formed(waits(""), nil), ""},
		"it leaves already":      {formed(named("d", pando.PhaseDraining, pando.StartJoin)), ""},
		"a service that forms":   {young, ""},
		"a service without hook": {plain, ""},
		"its host is away":       {away, ""},
	} {
		got := ""
		for _, v := range c.m.Strays() {
			got += string(v.Drain)
		}
		if got != c.want {
			t.Errorf("%s: drains %q, want %q", name, got, c.want)
		}
	}
}

// A quorum of positions is enough while the hosts of the others are away, and only then.
func TestAQuorumBootstraps(t *testing.T) {
	at := func(n int64) *pando.Instance {
		return waits(pando.Position{History: history, Number: n}.String())
	}
	away := func(quorum, gone int, all ...*pando.Instance) Muster {
		m := formed(all...)
		m.Quorum = quorum
		for n := range gone {
			m.Berths[n].Here = false
		}
		return m
	}
	for name, c := range map[string]struct {
		m       Muster
		ordinal int
		why     string
	}{
		"two of three": {away(2, 1, nil, at(8), at(9)), 3,
			":9, of 2 (hooks.quorum); that of db-0 is unknown, because its host h1 is away"},
		"a former leader without a lease": {away(2, 1, of(pando.PhaseInRotation, "", ""), at(9), at(8)),
			2, ":9, of 2"},
		"the newest of all, with all here": {away(2, 0, at(10), at(8), at(9)), 1, ":10"},
		"no quorum given":                  {away(0, 1, nil, at(8), at(9)), 0, "db-0 is unknown"},
		"too few":                          {away(2, 2, nil, nil, at(9)), 0, "of db-1 is unknown"},
		"one that is here is waited for":   {away(2, 0, waits(""), at(8), at(9)), 0, "not reported"},
		"also beside one that is away":     {away(1, 1, nil, waits(""), at(9)), 0, "not reported"},
		"one has no number":                {away(2, 1, nil, at(-1), at(9)), 0, "unknown to itself"},
		"a host that is away has no order": {away(2, 3, nil, nil, nil), 0, "unknown"},
	} {
		if s := c.m.Elect(); s.Ordinal != c.ordinal || !strings.Contains(s.Why, c.why) ||
			(s.Ordinal > 0 && s.Start != pando.StartBootstrap) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// An ordinal bootstraps after a crash of all only if every position is known, and no other one is
// newer. So no acknowledged write is lost. With one unknown, none does, and the reason names it.
func TestAnElectionLosesNoWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "ordinals")
		m := formed(make([]*pando.Instance, n)...)
		var most int64
		known := true
		for i := range m.Berths {
			number := rapid.Int64Range(-1, 5).Draw(t, "number")
			b := &m.Berths[i]
			b.Instance = waits(pando.Position{History: history, Number: number}.String())
			switch rapid.IntRange(0, 9).Draw(t, "fate") {
			case 0:
				b.Here = false
			case 1:
				b.Instance = nil
			case 2:
				b.Instance.Position = ""
			default:
				most = max(most, number)
				known = known && number >= 0
				continue
			}
			known = false
		}
		s := m.Elect()
		switch {
		case known && (s.Ordinal == 0 || s.Start != pando.StartBootstrap):
			t.Fatalf("every position is known, and none bootstraps: %+v", s)
		case !known && (s.Ordinal != 0 || !s.Blocked || !strings.Contains(s.Why, "db-")):
			t.Fatalf("a position is unknown, and the step is %+v", s)
		case known:
			p, err := pando.ParsePosition(m.Berths[s.Ordinal-1].Instance.Position)
			if err != nil || p.Number < most {
				t.Fatalf("ordinal %d bootstraps at %v (%v), and another is at %d", s.Ordinal, p, err, most)
			}
		}
	})
}

// Under any facts, no ordinal with an instance starts again, and none on a host that is unfit.
// No second ordinal starts beside another, but to report.
func TestNoOrdinalRunsTwice(t *testing.T) {
	phases := []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseReady,
		pando.PhaseInRotation, pando.PhaseDraining, pando.PhaseDrained}
	rapid.Check(t, func(t *rapid.T) {
		m := formed(make([]*pando.Instance, rapid.IntRange(1, 6).Draw(t, "ordinals"))...)
		m.Formed = rapid.Bool().Draw(t, "formed")
		m.Recovers = rapid.Bool().Draw(t, "recovers")
		for i := range m.Berths {
			b := &m.Berths[i]
			b.Here = rapid.IntRange(0, 3).Draw(t, "here") > 0
			b.Leaves = rapid.IntRange(0, 5).Draw(t, "leaves") == 0
			if rapid.Bool().Draw(t, "taken") {
				b.Instance = of(rapid.SampledFrom(phases).Draw(t, "phase"),
					rapid.SampledFrom([]pando.StartMode{pando.StartJoin, pando.StartRecover}).Draw(t, "order"),
					"")
			}
		}
		s := m.Next()
		if s.Ordinal == 0 {
			if s.Why == "" {
				t.Fatal("no start, and no reason")
			}
			return
		}
		b := m.Berths[s.Ordinal-1]
		_, starting := m.any(Berth.starts)
		_, serves := m.any(Berth.serves)
		switch {
		case b.Instance != nil, !b.Here, b.Leaves:
			t.Fatalf("ordinal %d starts at %+v", s.Ordinal, b)
		case starting && s.Start != pando.StartRecover && (serves || !m.Formed):
			t.Fatalf("a second ordinal starts: %+v", s)
		case s.Start == pando.StartBootstrap && (m.Formed || s.Ordinal != 1):
			t.Fatalf("a second group begins: %+v", s)
		case m.Formed && m.Recovers && !serves && s.Start != pando.StartRecover:
			t.Fatalf("a start without an election: %+v", s)
		}
	})
}

func TestOrdinalsLeaveInReverse(t *testing.T) {
	three := []pando.Instance{
		{ID: "a", Ordinal: 2, Phase: pando.PhaseInRotation},
		{ID: "b", Ordinal: 3, Phase: pando.PhaseInRotation},
		{ID: "c", Ordinal: 1, Phase: pando.PhaseInRotation},
	}
	if got := LeaveLast(three, 0, "gone"); len(got) != 1 || got[0].Drain != "b" {
		t.Errorf("of three, %v leave", got)
	}
	if got := LeaveLast(three, 3, "gone"); got != nil {
		t.Errorf("none is above 3, and %v leave", got)
	}
	three[1].Phase = pando.PhaseDraining
	if got := LeaveLast(three, 0, "gone"); got != nil {
		t.Errorf("one leaves already, and %v too", got)
	}
	all := []Move{{Drain: "a"}, {Drain: "c"}}
	if got := OneByOne(all, three, false); got != nil {
		t.Errorf("another ordinal is missing, and %v leave", got)
	}
	if got := OneByOne(all, three, true); len(got) != 1 {
		t.Errorf("%d leave at once", len(got))
	}
	three[2].Phase = pando.PhaseStarting
	if got := OneByOne(all, three, false); len(got) != 1 || got[0].Drain != "c" {
		t.Errorf("one does not serve, and %v leave", got)
	}
}
