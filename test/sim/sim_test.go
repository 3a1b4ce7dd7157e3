package sim

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// runsDefault is the number of runs at the gate, a fifth of it under the race detector. PANDO_RUNS
// sets another.
const runsDefault = 30 / slower

// The virtual times of one run.
const (
	chaosTime  = 40 * time.Second
	settleTime = 3 * time.Minute
	// delayLeast is the longest delay of nearly instant calls. Without it two calls arrive at the same
	// instant, and the scheduler picks their order.
	delayLeast = 10 * time.Microsecond
)

// nap advances virtual time by d.
func nap(d time.Duration) { time.Sleep(d) }

func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	switch {
	case text == "" && testing.Short() && name == "PANDO_RUNS":
		return max(1, otherwise/4) // make test-all runs all
	case text == "":
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// One processor makes goroutines that are ready at the same virtual instant run in the same order,
// unless one is preempted.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400) // a run keeps little and allocates much
	os.Exit(m.Run())
}

// TestWhateverHappens runs the cluster under random requests and faults, one seed after another.
func TestWhateverHappens(t *testing.T) {
	first, runs := number(t, "PANDO_SEED", 0), number(t, "PANDO_RUNS", runsDefault)
	if os.Getenv("PANDO_SEED") != "" {
		runs = 1
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			printSeed(t, seed)
			synctest.Test(t, func(t *testing.T) { run(t, seed, nothingMore) })
		})
	}
}

// printSeed prints the command that repeats a failed run. A failed bubble ends its test at once.
func printSeed(t *testing.T, seed uint64) {
	name, _, _ := strings.Cut(t.Name(), "/")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with: PANDO_SEED=%d go test ./test/sim -run %s", seed, name)
		}
	})
}

// nothingMore changes nothing in a new cluster.
func nothingMore(*cluster) {}

// run executes one run and returns everything that was written. set changes the new cluster.
func run(t *testing.T, seed uint64, set func(*cluster)) (written []pando.Batch) {
	ctx, cancel := context.WithCancel(context.Background())
	defer time.Sleep(agent.Lease + time.Second) // until the last lease has ended
	c := newCluster(ctx, t, seed, hostsOf(seed),
		max(delayLeast, time.Duration(seed%5)*4*time.Millisecond), set)
	defer c.endAll(cancel)
	c.startAll()
	all := operatorsOf(c)
	each := func(f func(*operator) bool) bool {
		return !slices.ContainsFunc(all, func(o *operator) bool { return !f(o) })
	}
	if !each(func(o *operator) bool {
		return o.until("the service is deployed", settleTime, o.deploy)
	}) {
		return nil
	}
	c.chaos(all)
	if !each((*operator).settle) {
		return nil
	}
	if !each(func(o *operator) bool {
		return o.until("the service is removed", settleTime, o.remove)
	}) ||
		!each(func(o *operator) bool { return o.until("nothing is left", settleTime, o.nothingLeft) }) {
		return nil
	}
	c.verify(all[0].main)
	return c.registry.History()
}

// hostsOf returns the number of hosts. Every third run has three hosts and a service without state.
// The others have one host, because a service with state lives on one.
func hostsOf(seed uint64) int {
	if seed%3 == 2 {
		return 3
	}
	return 1
}

// spreads reports whether the services of a run spread over its hosts: every second run with three.
func spreads(seed uint64) bool { return hostsOf(seed) > 1 && seed%2 == 1 }

// verify checks the written records and the promises against the rules.
func (c *cluster) verify(main pando.StateHead) {
	newAudit(c.t).replay(c.registry.History())
	c.verifyPromises()
	c.trace()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, started := range c.intents {
		if len(slices.Compact(started)) > 1 {
			c.t.Errorf("intent %s started %v", id, started)
		}
	}
	for _, cut := range c.cut {
		c.t.Errorf("flows of a living instance were broken: %s", cut)
	}
	switch {
	case c.accounts != nil:
		c.closeAccount(main)
	case len(c.hosts) == 1:
		c.verifyState(main)
	}
}

// verifyState checks that each acknowledged line is in the merged log, none twice, and that the
// counter counts each once.
func (c *cluster) verifyState(main pando.StateHead) {
	repo := state.Open(c.hosts[0].objects, service, stateTypes)
	lines := map[string]int{}
	total := 0
	if !main.Commit.IsZero() {
		total = c.readLog(repo, main.Commit, lines)
	}
	for line, n := range lines {
		if n > 1 {
			c.t.Errorf("line %s was merged %d times", line, n)
		}
		if !c.ledger.tried[line] {
			c.t.Errorf("line %q was never written", line)
		}
	}
	for line := range c.ledger.acked {
		if lines[line] == 0 {
			c.t.Errorf("line %s was acknowledged and is lost", line)
		}
	}
	if total != len(lines) {
		c.t.Errorf("the counter is %d, the log has %d lines", total, len(lines))
	}
}

// trace prints every step of the instance in PANDO_TRACE.
func (c *cluster) trace() {
	id := pando.InstanceID(os.Getenv("PANDO_TRACE"))
	if id == "" {
		return
	}
	for _, b := range c.registry.History() {
		for _, r := range b.Changes {
			if !strings.Contains(string(r.Key), string(id)) &&
				!strings.Contains(string(r.Value), string(id)) {
				continue
			}
			switch v, _ := world.DecodeAny(r); v := v.(type) {
			case pando.Instance:
				c.t.Logf("%d: %s %s since %s (%s, warm %v): %s",
					b.Revision, v.ID, v.Phase, v.Since.Format("05.000"), v.IP4, v.Warm, v.Reason)
			case pando.Intent:
				c.t.Logf("%d: %s %s by %s: %s (%s)", b.Revision, v.ID, v.Verb, v.By, v.State, v.Reason)
			case nil:
				c.t.Logf("%d: %s is gone", b.Revision, r.Key)
			}
		}
	}
}
