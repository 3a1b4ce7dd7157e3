package fault

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// operations returns the number of random operations. PANDO_OPERATIONS sets another: 200 in the
// soak.
func operations(t *testing.T) int { return numberOf(t, "PANDO_OPERATIONS", 10) }

// chance draws operations of an operator, and kills.
type chance struct {
	servers3
	dice     *rand.Rand
	revision int
	done     map[string]int // by operation, and by role of a killed daemon
	failed   int            // operations that a kill interrupted
}

// Random operations each lose the leading server or an agent in the middle. Afterwards every
// service is as its spec wants within 30 s, and no host has a program without a record.
func TestRandomOperationsAndKillsConverge(t *testing.T) {
	t.Parallel()
	seed := uint64(numberOf(t, "PANDO_SEED", int(time.Now().UnixNano()%1_000_000)+1))
	c := &chance{servers3: threeServers(t), dice: rand.New(rand.NewPCG(seed, 7)),
		done: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the same operations: PANDO_SEED=%d go test ./test/fault -run %s", seed, t.Name())
		}
	})
	c.held.Stop() // an instance drains for as long as its connection
	for range operations(t) {
		c.step()
	}
	took := c.converges()
	t.Logf("seed %d: %v, %d operations failed; all converged after %s", seed, c.done, c.failed, took)
	for _, name := range c.services() {
		c.Pando("rm", name, "--wait")
	}
	c.onlyPrograms()
	for _, h := range slices.Backward(c.Hosts) {
		c.Down(h, "--purge", "--force") // the last server has no other one
		if left := c.Left(h); len(left) > 0 {
			t.Errorf("left behind on %s: %v", h, left)
		}
	}
}

// step runs one operation on a host, kills a daemon meanwhile, and starts it again.
func (c *chance) step() {
	c.Helper()
	host := c.Hosts[c.dice.IntN(len(c.Hosts))]
	verb, args := c.draw()
	begun := c.Start(host, append([]string{c.Bin}, args...)...)
	role, victim := "agent", c.Hosts[c.dice.IntN(len(c.Hosts))]
	if c.dice.IntN(2) == 0 {
		role, victim = "leader", c.leader(host)
		c.KillServer(victim)
	} else {
		c.KillAgent(victim)
	}
	c.done[verb]++
	c.done[role]++
	if out := begun.Wait(); out.Code != 0 {
		c.failed++
	}
	c.Await("the daemons of "+victim, func() (string, bool) { return c.TryUp(victim) })
}

// draw returns an operation and its command.
func (c *chance) draw() (verb string, args []string) {
	c.revision++
	spec := func(name, place string) string {
		return c.Write(fmt.Sprintf("%s-%d.yaml", name, c.revision), labtest.Echo(name,
			fmt.Sprintf("environment: {TEXT: r%d, GODEBUG: multipathtcp=0}", c.revision), "scale: {min: 2, max: 9}",
			place))
	}
	other := fmt.Sprintf("other%d", c.dice.IntN(2))
	switch c.dice.IntN(6) {
	case 0, 1:
		return "scale", []string{"scale", "web", strconv.Itoa(2 + c.dice.IntN(5))}
	case 2:
		return "deploy", []string{"deploy", spec("web", "place: {spread: host}")}
	case 3:
		return "rollback", []string{"rollback", "web"}
	case 4:
		return "deploy", []string{"deploy", spec(other, "")}
	}
	return "rm", []string{"rm", other}
}

// services returns the names of the services.
func (c *chance) services() (names []string) {
	for _, st := range c.all() {
		names = append(names, string(st.Name))
	}
	return names
}

func (c *chance) all() []pando.ServiceStatus {
	c.Helper()
	var all []pando.ServiceStatus
	c.Await("the services", func() (string, bool) {
		var err error
		all, err = c.API(c.Host()).Services(c.Context())
		return fmt.Sprint(err), err == nil
	})
	return all
}

// converges waits until each service is as its spec wants, and until the programs of all hosts are
// those of the records. It returns the time of that.
func (c *chance) converges() time.Duration {
	c.Helper()
	begin := time.Now()
	c.Await("all services as their specs want", func() (string, bool) {
		good := true
		all := c.all()
		for _, st := range all {
			good = good && st.Phase == pando.ServiceServing && st.Current == st.Target &&
				len(st.Instances) == st.InRotation
		}
		seen, _ := json.Marshal(all)
		return string(seen), good && len(all) > 0
	})
	c.onlyPrograms()
	return time.Since(begin).Round(time.Millisecond)
}

// listing prints the instance of each program echo on a host.
const listing = `for p in $(pgrep -x echo); do tr '\0' '\n' <"/proc/$p/environ"; done ` +
	`2>/dev/null | sed -n 's/^PANDO_INSTANCE=//p'`

// onlyPrograms waits until the hosts have the programs of the records, each once, and no other one. A
// spread may still become even meanwhile.
func (c *chance) onlyPrograms() {
	c.Helper()
	c.Await("the programs of the records alone", func() (string, bool) {
		want := map[string]bool{}
		for _, st := range c.all() {
			for _, i := range st.Instances {
				want[string(i.ID)] = true
			}
		}
		var seen []string
		for _, h := range c.Hosts {
			seen = append(seen, strings.Fields(c.Run(h, "sh", "-c", listing).Text)...)
		}
		good := len(seen) == len(want)
		for _, id := range seen {
			good = good && want[id]
		}
		return fmt.Sprintf("%v run, want %v", seen, want), good
	})
}
