package steering

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pando.run/pando"
)

// Change is a series of random events while connections stay open. Instances join, drain, come
// back, change weight, leave after their drain, or are replaced by a revision on other ports. The
// driver is reopened. The counts of broken connections and strays must be 0.
type Change struct {
	Connections, Events int
	Seed                uint64
	// Reopen, if any, replaces the driver as a new agent does.
	Reopen func(t *testing.T, s Subject) Subject
}

// Result counts the effects of random change.
type Result struct {
	Broken  int // connections that lost their instance
	Strays  int // new connections that reached an instance after its drain was published
	Opened  int // new connections
	Bridged int // instances that came and went
}

// grove is the service under change.
type grove struct {
	*stand
	t       *testing.T
	random  *rand.Rand
	next    int
	weights map[string]int // of the instances that are published
	ports   map[string][]pando.Port
	open    map[*client]string // connections, and the instance that answers each
	result  Result
}

const instancesMax = 8

// Run makes the changes, checks some connections after each and all at the end, and returns the
// counts.
func (c Change) Run(t *testing.T, open func(t *testing.T, uplinks ...string) Subject) Result {
	t.Helper()
	g := &grove{
		stand: newStand(t, open), t: t, random: rand.New(rand.NewPCG(c.Seed, 1)),
		weights: map[string]int{}, ports: map[string][]pando.Port{}, open: map[*client]string{},
	}
	t.Cleanup(g.closeAll)
	g.add()
	g.add()
	g.tell()
	for range c.Connections {
		g.connect()
	}
	for range c.Events {
		g.event(c)
		g.askSome(64)
		for range 4 {
			g.connect()
			g.close()
		}
	}
	for conn, was := range g.open {
		g.ask(conn, was)
	}
	return g.result
}

// add starts an instance. Every third belongs to a revision that listens at another port.
func (g *grove) add() {
	name := fmt.Sprintf("i%d", g.next)
	ports := slices.Clone(webPorts)
	if g.next%3 == 2 {
		ports[0].Target = 9090
	}
	g.next++
	serveAt(g.t, g.join(g.t, name, ports), name, ports[0].Target)
	g.weights[name], g.ports[name] = 50+g.random.IntN(200), ports
	g.result.Bridged++
}

// tell publishes the current endpoints.
func (g *grove) tell() {
	var e []pando.Endpoint
	for _, name := range g.names() {
		e = append(e, g.endpoint(name, g.weights[name]))
	}
	g.publish(g.t, e...)
}

func (g *grove) names() []string {
	var out []string
	for name := range g.weights {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (g *grove) takers() (n int) {
	for _, w := range g.weights {
		if w > 0 {
			n++
		}
	}
	return n
}

// event makes one random change.
func (g *grove) event(c Change) {
	names := g.names()
	name := names[g.random.IntN(len(names))]
	switch kind := g.random.IntN(6); {
	case kind == 0 && len(names) < instancesMax:
		g.add()
	case kind == 1 && g.weights[name] > 0 && g.takers() > 1:
		g.weights[name] = 0
	case kind == 2 && g.weights[name] == 0:
		g.hurry(name)
		g.leave(name)
	// A redeploy adds another instance beside it, then it drains.
	case kind == 3 && g.takers() > 1 && len(names) < instancesMax:
		g.add()
		g.weights[name] = 0
	case kind == 4 && c.Reopen != nil:
		g.Subject = c.Reopen(g.t, g.Subject)
	default:
		if g.weights[name] > 0 {
			g.weights[name] = 1 + g.random.IntN(300)
		}
	}
	g.tell()
}

// hurry closes the client connections of a draining instance, which would end by themselves later.
func (g *grove) hurry(name string) {
	for conn, at := range g.open {
		if at == name {
			conn.Close()
			delete(g.open, conn)
		}
	}
	eventually(g.t, name+" is drained",
		func() bool { return g.sweep(g.t).Flows[pando.InstanceID(name)] == 0 })
}

func (g *grove) leave(name string) {
	delete(g.weights, name)
	g.tell()
	if err := g.Disconnect(g.t.Context(), g.boxes[name].Link); err != nil {
		g.t.Fatal(err)
	}
	if err := g.boxes[name].Close(); err != nil {
		g.t.Fatal(err)
	}
}

// connect opens a connection: from outside or from the host, by either family.
func (g *grove) connect() {
	to := netip.AddrPortFrom(vip[g.random.IntN(2)], 80)
	var c *client
	dial := func() (err error) { c, err = dialTo(to); return err }
	from := dial
	if g.random.IntN(2) == 0 {
		from = func() error { return g.outside.Inside(dial) }
	}
	if err := from(); err != nil {
		g.t.Fatalf("a new connection to %s: %v", to, err)
	}
	name, err := c.ask("who")
	if err != nil {
		g.t.Fatalf("a new connection to %s: %v", to, err)
	}
	g.result.Opened++
	if g.weights[name] == 0 {
		g.result.Strays++
	}
	g.open[c] = name
}

// close ends one connection, so that their number stays constant.
func (g *grove) close() {
	for c := range g.open {
		c.Close()
		delete(g.open, c)
		return
	}
}

func (g *grove) askSome(n int) {
	for c, was := range g.open { // in a new order each time
		if n--; n < 0 {
			return
		}
		g.ask(c, was)
	}
}

func (g *grove) ask(c *client, was string) {
	if who, err := c.ask("who"); err != nil || who != was {
		g.t.Errorf("a connection to %s from %s is answered by %q, %v", was, c.LocalAddr(), who, err)
		g.result.Broken++
		c.Close()
		delete(g.open, c)
	}
}

// closeAll ends every connection at the end of the test.
func (g *grove) closeAll() {
	for c := range g.open {
		c.drop()
	}
}

// announcedComesAgain publishes a table that a driver may prepare ahead, replaces it, and publishes
// it again.
func announcedComesAgain(t *testing.T, s *stand) {
	soon := s.endpoint("b", 0)
	soon.Soon = 100
	for round := range 3 {
		s.publish(t, s.endpoint("a", 100), soon)
		for range 50 {
			if who := dial(t, netip.AddrPortFrom(vip[0], 80)).who(t); who != "a" {
				t.Fatalf("round %d: %s answers before it takes flows", round, who)
			}
		}
		s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
		seen := map[string]bool{}
		for n := 0; n < 200 && len(seen) < 2; n++ {
			seen[dial(t, netip.AddrPortFrom(vip[0], 80)).who(t)] = true
		}
		if len(seen) < 2 {
			t.Fatalf("round %d: only %v answer, both take flows", round, seen)
		}
	}
}
