package decidetest

import (
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// Begins adds a run to the book of web.
func (tb *Table) Begins(change func(*pando.Run)) {
	svc := tb.W.Services[Web].V
	spec, _ := tb.W.SpecOf(Web, svc.Target)
	r := lifecycle.NewRun(spec, svc.Target, tb.Now)
	if change != nil {
		change(&r)
	}
	svc.Book = svc.Book.With(r)
	tb.Put(svc)
}

// Ends ends an instance of a run by itself.
func (tb *Table) Ends(i pando.Instance, code float64) {
	tb.Put(pando.Decision{
		ID: tb.IDs.Sequential(tb.HostNow()), Service: Web, Instance: i.ID,
		Kind: lifecycle.OfEnd(&pando.Exit{Code: int(code)}, true, ""),
		At:   tb.HostNow(), Reason: fmt.Sprintf("it exited with %g", code),
		Inputs: map[string]float64{lifecycle.ExitCode: code, lifecycle.Run: float64(i.Run.Number)},
	})
	tb.gone(i)
}

func (tb *Table) gone(i pando.Instance) {
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.Rev)
}

// NewestRun returns the last run of the job web.
func (tb *Table) NewestRun() pando.Run {
	r, _ := tb.W.Services[Web].V.Book.Newest()
	return r
}

// Work makes every placed instance of a run start, and every draining one go, as an agent would.
func (tb *Table) Work() {
	for _, i := range world.RunsOf(tb.W, Web) {
		switch i.Phase {
		case pando.PhasePlaced:
			i.Phase, i.Since = pando.PhaseStarting, tb.HostNow()
			tb.Put(i)
		case pando.PhaseDraining:
			tb.gone(i)
		}
	}
}

// berths returns the ordinal, the host, the phase and the order of each instance.
func (tb *Table) ordinalsNow() string {
	var out [4]string
	for _, i := range tb.W.Of(Web) {
		out[i.Ordinal] += fmt.Sprintf("%d %s %s %s", i.Ordinal, i.Host, i.Phase, i.Start)
	}
	return strings.Trim(strings.Join(out[1:], "; "), "; ")
}

// CrashAll ends every instance as a crash does.
func (tb *Table) CrashAll() {
	for _, i := range tb.W.Of(Web) {
		tb.Fail(i, 137)
	}
}

// Expect fails the test unless the ordinals of web stand as wanted.
func (tb *Table) Expect(want string) {
	tb.T.Helper()
	if got := tb.ordinalsNow(); got != want {
		tb.T.Fatalf("got  %s\nwant %s", got, want)
	}
}

// Report gives the ordinals that wait the position of their number in numbers.
func (tb *Table) Report(numbers ...int64) {
	for _, i := range tb.W.Of(Web) {
		if i.Start == pando.StartRecover && numbers[i.Ordinal-1] >= 0 {
			i.Position = pando.Position{History: "h", Number: numbers[i.Ordinal-1]}.String()
			tb.Put(i)
		}
	}
}

// Serve brings the instance of an ordinal into rotation.
func (tb *Table) Serve(ordinal int) {
	for _, i := range tb.W.Of(Web) {
		if i.Ordinal == ordinal {
			i.Phase, i.Since = pando.PhaseInRotation, tb.Now
			tb.Put(i)
		}
	}
}

// SettleLoosely decides until nothing is to be written, also after the service is gone.
func (tb *Table) SettleLoosely() {
	for range 50 {
		txn, _ := decide.Decide(tb.W, Web, tb.Now, tb.IDs)
		if len(txn.Put)+len(txn.Delete) == 0 {
			return
		}
		tb.Rev++
		tb.Commit(txn, tb.Rev)
	}
}

// Ordinals returns the ordinals of the instances that have their volumes, in the order of birth.
func (tb *Table) Ordinals() (out []int) {
	for _, i := range tb.W.Of(Web) {
		if i.Phase != pando.PhaseFailed && i.Phase != pando.PhaseMerged {
			out = append(out, i.Ordinal)
		}
	}
	return out
}

// ServesSecond reports whether two instances of revision 2 serve, and no other.
func (tb *Table) ServesSecond() bool {
	all := tb.W.Of(Web)
	for _, i := range all {
		if i.Revision != 2 || i.Phase != pando.PhaseInRotation {
			return false
		}
	}
	return len(all) == 2
}

// Steps lets instances take their steps until done returns true.
func (tb *Table) Steps(what string, done func() bool) {
	tb.T.Helper()
	for range 100 {
		tb.Settle()
		if done() {
			return
		}
		tb.Now = tb.Now.Add(time.Second)
		tb.Run()
	}
	tb.T.Fatalf("%s never comes: %v", what, tb.W.Of(Web))
}
