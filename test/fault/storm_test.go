package fault

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/clock"
	"pando.run/pando/edge"
	"pando.run/pando/lab/labtest"
)

// storm draws faults of every kind, one during each operation.
type storm struct{ chance }

// Each operation is disturbed once: by a kill, a stop, a pause or a cut, on 2, 3 and 4 hosts whose
// clocks differ. Every command ends within its limit. Afterwards nothing waits, and the hosts agree on
// instances, VIPs and volumes.
//
// PANDO_STORM is the number of operations, and PANDO_SEED draws them.
func TestAfterAnyFaultNothingWaits(t *testing.T) {
	t.Parallel()
	first := uint64(numberOf(t, "PANDO_SEED", int(time.Now().UnixNano()%1_000_000)+1))
	for hosts := 2; hosts <= 4; hosts++ {
		t.Run(fmt.Sprintf("%d hosts", hosts), func(t *testing.T) {
			t.Parallel()
			seed := first + uint64(hosts)
			t.Logf("the same faults: PANDO_SEED=%d go test ./test/fault -run '%s'", first, t.Name())
			c := newStorm(t, hosts, seed)
			for range numberOf(t, "PANDO_STORM", 5) {
				c.disturbed()
			}
			took := c.converges()
			c.agree()
			t.Logf("seed %d: %v, %d operations failed; all agreed after %s", seed, c.done, c.failed, took)
		})
	}
}

// storeServers are the servers of a lab: one for two hosts, because two servers have no majority
// without one.
func storeServers(hosts int) int {
	if hosts < 3 {
		return 1
	}
	return 3
}

func newStorm(t *testing.T, hosts int, seed uint64) *storm {
	dice := rand.New(rand.NewPCG(seed, 11))
	var skew []time.Duration
	for range hosts {
		skew = append(skew, time.Duration(dice.IntN(3)-1)*time.Minute)
	}
	p := labtest.UpWith(t, labtest.Options{Hosts: hosts, Idle: true, Skew: skew})
	for n, h := range p.Hosts {
		switch {
		case n == 0:
			p.Up(h)
		case n < storeServers(hosts):
			joinAsServer(p, h)
		default:
			p.Join(h)
			p.Pando("hosts", "allow", h, "deploy")
			p.Pando("hosts", "allow", h, "exec")
		}
	}
	c := &storm{chance{servers3: servers3{hosts3: p}, dice: dice, done: map[string]int{}}}
	c.web = p.Deploy(labtest.Echo("web", "scale: {min: 2, max: 9}", "place: {spread: host}",
		"environment: {GODEBUG: multipathtcp=0}")) // CRIU continues no MPTCP
	p.Deploy(labtest.Echo("kept", "volumes: [\"data:/var/lib/kept\"]"))
	c.web.AwaitInstances(2)
	t.Logf("clocks: %v", skew)
	return c
}

// commandMax bounds a command. It is far longer than needed, because the machine may be busy.
const commandMax = 90 * time.Second

// ofOperators are operations that the host of a server alone may ask for.
var ofOperators = []string{"migrate", "snapshot", "rebalance", "drain"}

// disturbed runs one operation, disturbs it, and ends the disturbance.
func (c *storm) disturbed() {
	c.Helper()
	host := c.Hosts[c.dice.IntN(len(c.Hosts))]
	verb, args := c.operation()
	if slices.Contains(ofOperators, verb) {
		host = c.Hosts[c.dice.IntN(storeServers(len(c.Hosts)))]
	}
	name, a, hurt, heal := c.fault()
	c.done[verb]++
	c.done[name]++
	begun := c.Start(host, append([]string{c.Bin}, args...)...)
	hurt()
	_ = pando.Sleep(c.Context(), clock.Clock{}, time.Duration(c.dice.IntN(4000))*time.Millisecond)
	heal()
	for _, h := range c.Hosts {
		c.AwaitFor(2*labtest.Patience, "the daemons of "+h+" after "+name,
			func() (string, bool) { return c.TryUp(h) })
	}
	what := fmt.Sprintf("the end of `pando %s` on %s during %s", strings.Join(args, " "), host, name)
	c.AwaitFor(commandMax, what, func() (string, bool) { return begun.Text(), begun.Ended() })
	if out := begun.Wait(); out.Code != 0 {
		c.failed++
		c.Logf("`pando %s` on %s during %s of %s: exit code %d: %s", strings.Join(args, " "), host, name,
			a, out.Code, strings.TrimSpace(out.Text))
	}
}

// operation returns an operation and its command.
func (c *storm) operation() (verb string, args []string) {
	any := c.Hosts[c.dice.IntN(len(c.Hosts))]
	switch c.dice.IntN(9) {
	case 3:
		return "migrate", []string{"migrate", "web", "--to", any}
	case 4:
		return "snapshot", []string{"snapshot", "web"}
	case 5:
		return "rebalance", []string{"rebalance"}
	case 6:
		return "drain", []string{"hosts", "drain", any, "--for", "5s"}
	case 0:
		return "restart", []string{"restart", "web"}
	case 1:
		return "run", []string{"run", "web", "--", "true"}
	case 2:
		return "exec", []string{"exec", "kept", "--", "true"}
	}
	return c.draw()
}

// fault returns a fault, the host that it concerns, how it begins and how it ends.
func (c *storm) fault() (name, a string, hurt, heal func()) {
	a = c.Hosts[c.dice.IntN(len(c.Hosts))]
	b := c.others(a)[c.dice.IntN(len(c.Hosts)-1)]
	role := []string{"agent", "server"}[c.dice.IntN(2)]
	if c.Run(a, "test", "-e", "/run/pando/server.pid").Code != 0 {
		role = "agent"
	}
	must := func(err error) {
		if err != nil {
			c.Fatal(err)
		}
	}
	healAll := func() { must(c.Lab.Heal()) }
	signal := func(sig string) func() {
		return func() { c.Run(a, "sh", "-c", "kill -"+sig+" $(cat /run/pando/"+role+".pid)") }
	}
	programs := func(name string) func() { // of any instance there
		return func() { c.Run(a, "sh", "-c", "kill -9 $(pgrep -x "+name+" | head -n 1)") }
	}
	none := func() {}
	switch c.dice.IntN(8) {
	case 0:
		return "kill of the " + role, a, signal("9"), none
	case 1:
		return "kill of a program", a, programs("echo"), none
	case 2:
		return "kill of a shim", a, programs("pando-shim"), none
	case 3:
		return "stop of the " + role, a, signal("STOP"), signal("CONT")
	case 4:
		return "pause", a, func() { must(c.Lab.Pause(a)) }, healAll
	case 5:
		return "block", a, func() { must(c.Lab.Block(a, b)) }, healAll
	case 6:
		return "cut off", a, func() {
			for _, other := range c.others(a) {
				must(c.Lab.Cut(a, other))
			}
		}, healAll
	}
	return "cut", a, func() { must(c.Lab.Cut(a, b)) }, healAll
}

// agree waits until no host has a trouble, nothing waits without a reason, and each share of the VIPs
// and each volume has one holder.
func (c *storm) agree() {
	c.Helper()
	c.Await("no trouble", func() (string, bool) {
		said := c.Run(c.Host(), c.Bin, "status").Text + c.Run(c.Host(), c.Bin, "ps").Text
		lines := strings.Split(strings.TrimSpace(said), "\n")
		bad := []string{}
		for _, l := range lines {
			table := strings.HasPrefix(l, "SERVICE") || len(strings.Fields(l)) > 5 &&
				(strings.Contains(l, " serving ") || strings.Contains(l, " in rotation "))
			if !table {
				bad = append(bad, l)
			}
		}
		return strings.Join(bad, "\n"), len(bad) == 0
	})
	var names []pando.ServiceName
	for _, st := range c.all() {
		names = append(names, st.Name)
	}
	c.Await("the same steering on all hosts", func() (string, bool) {
		all, err := api.SteeringClient{Client: c.API(c.Host())}.Steering(c.Context(),
			pando.DefaultTenant, names, 0)
		good := err == nil && len(all) == len(c.Hosts)
		for _, h := range all {
			good = good && h.Confirmed && !h.Partly
		}
		text, _ := json.Marshal(all)
		return fmt.Sprint(string(text), err), good
	})
	c.Await("one holder of each VIP", c.oneHolder)
	c.Await("one holder of each volume", func() (string, bool) {
		all, err := c.API(c.Host()).Volumes(c.Context(), pando.VolumeQuery{})
		on, good := map[string]pando.HostName{}, err == nil
		for _, v := range all {
			good = good && v.Missing == ""
			if len(v.Instances) == 0 {
				continue // a former one
			}
			name := fmt.Sprint(v.Service, v.Name, v.Part)
			_, twice := on[name]
			good = good && !twice && len(v.Instances) == 1
			on[name] = v.Host
		}
		return fmt.Sprint(all, err), good
	})
}

// oneHolder reports whether the hosts of a network hold all shares of the VIPs, each once.
func (c *storm) oneHolder() (string, bool) {
	all, err := c.API(c.Host()).Hosts(c.Context())
	if err != nil {
		return err.Error(), false
	}
	held, sum, announces := edge.Shares{}, 0, false
	for _, h := range all {
		if h.Losses == nil || h.Segment == "" {
			continue
		}
		s, err := edge.ParseShares(h.Losses.Holds)
		if err != nil {
			return err.Error(), false
		}
		announces, sum, held = true, sum+s.Len(), held.Or(s)
	}
	text := fmt.Sprintf("%d shares are held, %d different ones", sum, held.Len())
	return text, !announces || sum == edge.VIPShares && held.Len() == edge.VIPShares
}
