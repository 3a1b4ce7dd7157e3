package sim

import (
	"context"
	"os"
	"runtime"
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

// runsDefault is the count of the gate, a fifth of it under the race detector; PANDO_RUNS asks for more.
const runsDefault = 30 / slower

// The times of one run, virtual.
const (
	chaosTime  = 40 * time.Second
	settleTime = 3 * time.Minute
	// delayLeast is the longest that calls take where they take next to nothing: enough that no two arrive at the same
	// instant, where the scheduler would say which comes first.
	delayLeast = 10 * time.Microsecond
)

// nap lets virtual time pass.
func nap(d time.Duration) { time.Sleep(d) }

func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// One processor: goroutines that are ready at the same virtual instant then take their turns in the same order, unless one is
// preempted.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// TestWhateverHappens runs the cluster under random asks and faults, one seed after another.
func TestWhateverHappens(t *testing.T) {
	first, runs := number(t, "PANDO_SEED", 0), number(t, "PANDO_RUNS", runsDefault)
	if os.Getenv("PANDO_SEED") != "" {
		runs = 1
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, seed) })
			if t.Failed() {
				t.Logf("again with: PANDO_SEED=%d go test ./test/sim", seed)
			}
		})
	}
}

// run is one run; it returns everything that was written.
func run(t *testing.T, seed uint64) (written []pando.Batch) {
	ctx, cancel := context.WithCancel(context.Background())
	defer time.Sleep(agent.Lease + time.Second) // until the last lease has ended
	c := newCluster(ctx, t, seed, hostsOf(seed), max(delayLeast, time.Duration(seed%5)*4*time.Millisecond))
	defer c.wg.Wait()
	defer func() { // after a failure too: nothing may outlive the bubble
		cancel()
		for _, h := range c.hosts {
			h.sandboxes.Reboot()
		}
	}()
	for _, p := range c.controls {
		p.start()
	}
	for _, h := range c.hosts {
		h.start()
	}
	all := operatorsOf(c)
	each := func(f func(*operator) bool) bool {
		return !slices.ContainsFunc(all, func(o *operator) bool { return !f(o) })
	}
	if !each(func(o *operator) bool { return o.until("the service is deployed", settleTime, o.deploy) }) {
		return nil
	}
	c.chaos(all)
	if !each((*operator).settle) {
		return nil
	}
	if !each(func(o *operator) bool { return o.until("the service is removed", settleTime, o.remove) }) ||
		!each(func(o *operator) bool { return o.until("nothing is left", settleTime, o.nothingLeft) }) {
		return nil
	}
	c.verify(all[0].main)
	return c.registry.History()
}

// hostsOf: a service with state lives on one host; every third run has several hosts and a service without state.
func hostsOf(seed uint64) int {
	if seed%3 == 2 {
		return 3
	}
	return 1
}

// verify holds what was written and what was promised against the rules.
func (c *cluster) verify(main pando.StateHead) {
	newAudit(c.t).replay(c.registry.History())
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
	if len(c.hosts) == 1 {
		c.verifyState(main)
	}
}

// verifyState: each acknowledged line is in the merged log, none twice, and the counter has counted each once.
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
		c.t.Errorf("the counter says %d, the log has %d lines", total, len(lines))
	}
}

// trace prints every step of the instance that PANDO_TRACE names.
func (c *cluster) trace() {
	id := pando.InstanceID(os.Getenv("PANDO_TRACE"))
	if id == "" {
		return
	}
	for _, b := range c.registry.History() {
		for _, r := range b.Changes {
			if !strings.Contains(string(r.Key), string(id)) && !strings.Contains(string(r.Value), string(id)) {
				continue
			}
			switch v, _ := world.DecodeAny(r); v := v.(type) {
			case pando.Instance:
				c.t.Logf("%d: %s %s since %s (%s, warm %v): %s", b.Revision, v.ID, v.Phase, v.Since.Format("05.000"), v.IP4, v.Warm, v.Reason)
			case pando.Intent:
				c.t.Logf("%d: %s %s by %s: %s (%s)", b.Revision, v.ID, v.Verb, v.By, v.State, v.Reason)
			case nil:
				c.t.Logf("%d: %s is gone", b.Revision, r.Key)
			}
		}
	}
}
