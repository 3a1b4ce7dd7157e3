package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// patience is how long a test waits for a condition.
const patience = time.Minute

// bird is the router of a test: BIRD on a loopback address of its own.
type bird struct {
	testing.TB
	dir  string
	at   netip.Addr
	port uint16
}

// startBird starts BIRD with more settings of its session. It skips without BIRD.
func startBird(t testing.TB, session string) *bird {
	t.Helper()
	if _, err := exec.LookPath("bird"); err != nil {
		t.Skip("BIRD is missing: sudo apt-get install bird2")
	}
	if os.Geteuid() != 0 {
		t.Skip("passwords of sessions need root")
	}
	b := &bird{TB: t, dir: t.TempDir(), at: netip.MustParseAddr("127.0.0.2")}
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	b.port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	l.Close()
	conf := fmt.Sprintf(`log "%s/log" all;
router id 127.0.0.2;
protocol device { }
protocol bgp host {
	local 127.0.0.2 port %d as 64500;
	neighbor 127.0.0.1 as 64512;
	multihop;
	passive on;
	%s
	ipv4 { import all; export none; };
	ipv6 { import all; export none; };
}
`, b.dir, b.port, session)
	if err := os.WriteFile(filepath.Join(b.dir, "conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bird", "-f", "-c", filepath.Join(b.dir, "conf"), "-s", b.ctl())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(b.dir, "log"))
			t.Logf("the log of BIRD:\n%s", text)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return b
}

func (b *bird) ctl() string { return filepath.Join(b.dir, "ctl") }

// show returns the answer of BIRD to a command, or "" before it answers.
func (b *bird) show(words ...string) string {
	out, _ := exec.Command("birdc", append([]string{"-r", "-s", b.ctl()}, words...)...).Output()
	return string(out)
}

// routes returns the number of routes that BIRD has.
func (b *bird) routes() (n int) {
	out := b.show("show", "route", "count")
	for line := range strings.Lines(out) {
		var all, nets int
		if _, err := fmt.Sscanf(line, "%d of %d routes for", &all, &nets); err == nil {
			n += all
		}
		if strings.HasPrefix(line, "Total:") {
			break
		}
	}
	return n
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() (string, bool)) {
	t.Helper()
	seen := ""
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var ok bool
		if seen, ok = holds(); ok {
			return
		}
		_ = pando.Sleep(t.Context(), clock.Clock{}, 10*time.Millisecond)
	}
	t.Fatalf("waited %s for %s; last seen: %s", patience, what, seen)
}

// speaks starts a speaker towards a router. end ends it.
func speaks(t testing.TB, b *bird, change func(*Config)) (s *Speaker, end func(withdraws bool)) {
	t.Helper()
	c := Config{
		AS: 64512, Routers: []pando.Router{{Address: b.at, AS: 64500}}, Hold: HoldMin,
		ID: netip.MustParseAddr("10.128.0.0"), Next4: netip.MustParseAddr("127.0.0.1"),
		Next6: netip.MustParseAddr("2001:db8::1"), Port: b.port, Clock: clock.Clock{},
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, withdraw := make(chan error, 1), true
	go func() { done <- s.Serve(ctx, func() bool { return withdraw }) }()
	ended := false
	end = func(withdraws bool) {
		if ended {
			return
		}
		ended, withdraw = true, withdraws
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the end of the speaker: %v", err)
		}
	}
	t.Cleanup(func() { end(true) })
	return s, end
}

// vips returns VIPs of n services.
func vips(n int) (all []netip.Addr) {
	for i := range n {
		all = append(all, netip.AddrFrom4([4]byte{10, 127, byte(i >> 8), byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("fd70:616e:646f:ffff::%x", i+2)))
	}
	return all
}

func (b *bird) awaitRoutes(n int) {
	b.Helper()
	await(b, fmt.Sprintf("%d routes", n), func() (string, bool) {
		got := b.routes()
		return fmt.Sprint(got), got == n
	})
}

// BIRD gets and loses routes of both families, by the address of the host.
func TestARouterGetsTheRoutes(t *testing.T) {
	b := startBird(t, "")
	s, end := speaks(t, b, nil)
	all := vips(3)
	if err := s.Announce(all); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(6)
	out := b.show("show", "route", "all")
	for _, want := range []string{"10.127.0.1/32", "BGP.next_hop: 127.0.0.1", "BGP.as_path: 64512",
		"fd70:616e:646f:ffff::2/128", "BGP.next_hop: 2001:db8::1"} {
		if !strings.Contains(out, want) {
			t.Errorf("the routes have no %q:\n%s", want, out)
		}
	}
	if st := s.Status(); len(st) != 1 || !st[0].Up || st[0].Since.IsZero() || st[0].Why != "" {
		t.Errorf("the session is %+v", st)
	}
	if err := s.Withdraw(all[:2]); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(4)
	end(true)
	b.awaitRoutes(0)
}

// A router keeps the routes of an agent that ends by itself, and after its restart those that
// the new agent announces.
func TestARestartKeepsTheRoutes(t *testing.T) {
	b := startBird(t, "")
	s, end := speaks(t, b, nil)
	if err := s.Announce(vips(2)); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(4)
	end(false)
	await(t, "the session to be down", func() (string, bool) {
		out := b.show("show", "protocols", "host")
		return out, !strings.Contains(out, "Established")
	})
	if n := b.routes(); n != 4 {
		t.Fatalf("after the end of the agent the router has %d routes, want 4", n)
	}
	s, end = speaks(t, b, nil)
	if err := s.Announce(vips(1)); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(2)
	end(true)
	b.awaitRoutes(0)
}

// A session that does not come up has its cause.
func TestASessionThatIsDownHasItsCause(t *testing.T) {
	for _, c := range []struct {
		name, session, want string
		change              func(*Config)
	}{
		{"the router's number", "", "autonomous system differs",
			func(c *Config) { c.Routers[0].AS = 64501 }},
		{"this host's number", "", "autonomous system differs", func(c *Config) { c.AS = 64513 }},
		{"another password", `password "pear";`, "the password differs",
			func(c *Config) { c.Password = "apple" }},
		{"a password there only", `password "pear";`, "the router wants a password", nil},
		{"no BGP there", "", "it refuses connections", func(c *Config) { c.Port++ }},
	} {
		t.Run(c.name, func(t *testing.T) { // one after another: GoBGP has variables of the process
			s, _ := speaks(t, startBird(t, c.session), c.change)
			await(t, c.want, func() (string, bool) {
				st := s.Status()[0]
				return st.Why, !st.Up && strings.Contains(st.Why, c.want)
			})
		})
	}
}

func TestASessionWithAPasswordComesUp(t *testing.T) {
	b := startBird(t, `password "pear";`)
	s, _ := speaks(t, b, func(c *Config) { c.Password = "pear" })
	if err := s.Announce(vips(1)); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(2)
}

// 10,000 services are announced, and withdrawn again.
func TestTenThousandServices(t *testing.T) {
	b := startBird(t, "")
	s, _ := speaks(t, b, nil)
	all := vips(10_000)
	began := time.Now()
	if err := s.Announce(all); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(20_000)
	t.Logf("20000 routes after %s", time.Since(began))
	began = time.Now()
	if err := s.Withdraw(all); err != nil {
		t.Fatal(err)
	}
	b.awaitRoutes(0)
	t.Logf("withdrawn after %s", time.Since(began))
}

// The errors of a kernel, and messages of routers, become causes.
func TestCauses(t *testing.T) {
	open, locked := &Speaker{}, &Speaker{Config: Config{Password: "apple"}}
	for text, want := range map[string]string{
		"dial tcp 192.0.2.1:179: connect: connection refused":     "speaks no BGP",
		"dial tcp 192.0.2.1:179: i/o timeout":                     "the router wants a password",
		"dial tcp 192.0.2.1:179: connect: no route to host":       "no machine has this address",
		"dial tcp 192.0.2.1:179: connect: network is unreachable": "no route to it",
		"bind: cannot assign requested address":                   "lost the address",
		"something else":                                          "something else",
	} {
		if got := open.cause(text); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := locked.cause("i/o timeout"); !strings.Contains(got, "the password differs") {
		t.Errorf("with a password: %q", got)
	}
	for n, want := range map[notification]string{
		{2, 2}: "autonomous system", {6, 5}: "does not accept", {3, 9}: "code 3 and subcode 9",
	} {
		if got := n.String(); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", [2]int64{n.code, n.subcode}, got, want)
		}
	}
}
