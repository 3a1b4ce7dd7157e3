package decidetest

import (
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// StartsOnH2 lets the service look for a host again. Its two instances must start on h2.
func (tb *Table) StartsOnH2(t *testing.T) {
	t.Helper()
	tb.Now = tb.Now.Add(decide.ApartLook)
	tb.Settle()
	tb.Run()
	tb.Settle()
	if tb.On("h2", pando.PhaseInRotation) != 2 || tb.On("h1", pando.PhaseInRotation) != 0 {
		t.Errorf("it runs on %v, want h2", tb.W.Of(Web))
	}
}

// Lose ends the lease of a host, as the store does when its agent is silent.
func (tb *Table) Lose(h pando.HostName) {
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{pando.HostKey(h)}}, tb.Rev)
}

// Lost returns the reasons of the host-lost decisions.
func (tb *Table) Lost() (out []string) {
	for _, v := range tb.W.DecisionsOf(Web) {
		if v.Kind == pando.DecidedHostLost {
			out = append(out, v.Reason)
		}
	}
	return out
}

// On counts the instances of web on a host in a phase.
func (tb *Table) On(h pando.HostName, p pando.Phase) (n int) {
	for _, i := range tb.W.Of(Web) {
		if i.Host == h && i.Phase == p {
			n++
		}
	}
	return n
}

// Mark drains a host, or ends its drain.
func (tb *Table) Mark(h pando.HostName, drains bool) {
	m := tb.W.Members[h].V
	if m.Name, m.Drain = h, nil; drains {
		m.Drain = &pando.HostDrain{At: tb.Now}
	}
	tb.Put(m)
}

// Members admits hosts.
func (tb *Table) Members(all ...pando.HostName) {
	for n, h := range all {
		tb.Put(pando.Member{Name: h, Slot: n})
	}
}

// SettleDrain decides and runs until no instance of web is left on a host. It returns the least
// number in rotation meanwhile.
func (tb *Table) SettleDrain(from pando.HostName) (least int) {
	tb.T.Helper()
	least = tb.Count(pando.PhaseInRotation)
	for range 40 {
		tb.Settle()
		left := 0
		for _, i := range tb.W.Of(Web) {
			if i.Host == from {
				left++
			}
		}
		if least = min(least, tb.Count(pando.PhaseInRotation)); left == 0 {
			return least
		}
		tb.Now = tb.Now.Add(2 * time.Second)
		tb.Trickle()
	}
	tb.T.Fatalf("%s is not empty: %+v", from, tb.W.Of(Web))
	return 0
}

// Trickle is run with one start at a time.
func (tb *Table) Trickle() {
	started := false
	for _, i := range tb.W.Of(Web) {
		switch {
		case i.Phase == pando.PhasePlaced && started:
		case i.Phase == pando.PhasePlaced:
			started = true
			i.Phase, i.Since = pando.PhaseInRotation, tb.HostNow()
			if i.Warm {
				i.Phase = pando.PhaseWarm
			}
			tb.Put(i)
		case i.Phase == pando.PhaseDraining:
			tb.Rev++
			tb.Commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.Rev)
		}
	}
}

// Other writes the records of db in a phase.
func (tb *Table) Other(phase pando.ServicePhase, current int, with ...pando.Stored) {
	spec := pando.Spec{Name: "db", Command: []string{"x"}, Restart: pando.RestartNo}
	tb.Put(append(with, pando.Service{ServiceKey: Database, Current: current, Target: 1, Latest: 1,
		Phase: phase, Reason: "a reason"},
		pando.Revision{Service: Database, Number: 1, Spec: spec.WithDefaults()})...)
}

// Hosts returns the number of web's instances in rotation on h1, h2 and h3.
func (tb *Table) Hosts() (out [3]int) {
	for n, h := range []pando.HostName{"h1", "h2", "h3"} {
		out[n] = tb.On(h, pando.PhaseInRotation)
	}
	return out
}

// Rolled deploys a revision and lets it take over.
func (tb *Table) Rolled(number int, change func(*pando.Spec)) {
	tb.T.Helper()
	tb.Deploy(number, change)
	for range 60 {
		tb.Settle()
		tb.Run()
		if tb.W.Services[Web].V.Current == number {
			return // before anything evens the spread afterwards
		}
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	tb.T.Fatalf("revision %d is current, want %d", tb.W.Services[Web].V.Current, number)
}

// Shift writes that the service web moves from one host to another.
func (tb *Table) Shift(s pando.Shift) {
	svc := tb.W.Services[Web].V
	svc.Shift = &s
	tb.Put(svc)
}

// SettleRestart decides and runs until the restart is over. It returns the least number in rotation
// and the largest number of instances that count meanwhile.
func (tb *Table) SettleRestart() (least, most int) {
	tb.T.Helper()
	least = tb.Count(pando.PhaseInRotation)
	for range 40 {
		tb.Settle()
		in, all := tb.Count(pando.PhaseInRotation), 0
		for _, i := range tb.W.Of(Web) {
			if i.Capacity() {
				all++
			}
		}
		least, most = min(least, in), max(most, all)
		if tb.W.Services[Web].V.Renew == nil {
			return least, most
		}
		tb.Now = tb.Now.Add(2 * time.Second)
		tb.Run()
	}
	tb.T.Fatalf("the restart does not end: %+v", tb.W.Services[Web].V)
	return 0, 0
}

// Hang lets hosts report instances that do not answer.
func (tb *Table) Hang(which func(pando.Instance) bool) {
	for _, i := range tb.W.Of(Web) {
		if i.Phase == pando.PhaseInRotation && i.Unwell == "" && which(i) {
			i.Unwell = "3 live probes failed: no answer"
			tb.Put(i)
		}
	}
}

// Database is the service that web needs in the tests of needs.
var Database = pando.DefaultService("db")
