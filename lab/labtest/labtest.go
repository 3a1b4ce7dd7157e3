// Package labtest runs the real pando on virtual hosts, for tests and benchmarks in an operator's
// terms. Every test has its own lab with its own host names and folders, so labs never meet. All of
// it is gone when the test ends, even after a failure.
//
// It decides nothing, and it never touches the machine's own network or /run.
package labtest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando/api"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab"
)

// Patience is how long a test waits for a condition before it fails. It is far longer than needed,
// because the machine may be busy.
const Patience = 30 * time.Second

// Options of a lab. The zero value is one host with `pando up` done.
type Options struct {
	Hosts int      // 1
	Flags []string // of `pando up`, after --data-dir and --host
	Idle  bool     // the hosts exist, but nothing runs on them yet
	One   bool     // one cluster: the first host runs the server, the others join it
	Tags  []string // of the build
	// OnlyIPv6 means that no member of the lab has an IPv4 address.
	OnlyIPv6 bool
	// Router puts a router that speaks BGP between the client and the VIPs (lab.Config).
	Router *lab.BGP
	// MTU is the largest packet of the lab's network (lab.Config).
	MTU int
	// Skew is how far the clocks of the hosts are ahead, in their order.
	Skew []time.Duration
	// Warden means that a warden restarts ended daemons. Without it, a killed daemon stays dead.
	Warden bool
}

// Pando is one lab with Pando on its hosts. Its methods end the test on an error.
type Pando struct {
	Members
	Bin   string   // the pando binary
	Dir   string   // the test's folder; every host and sandbox may read it
	Hosts []string // names; each also names its host's `pando up`
	flags []string
	guard string              // the flag of `pando up` about the warden
	there map[string][]string // the output of deploy/leaks on a fresh host
}

// Client is the member of the lab that uses the services over the network.
const Client = "client"

var labs atomic.Int64

// Up makes a lab of one host and starts Pando on it.
func Up(t testing.TB) *Pando {
	t.Helper()
	return UpWith(t, Options{})
}

// UpWith makes a lab and starts Pando on its hosts.
func UpWith(t testing.TB, o Options) *Pando {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("virtual hosts need root")
	}
	p := &Pando{Members: Members{TB: t}, Bin: Build(t, "./cmd/pando", o.Tags...), flags: o.Flags}
	Build(t, "./cmd/pando-shim") // beside it, as `make build` does
	p.guard = "--warden=" + strconv.FormatBool(o.Warden)
	dir, err := os.MkdirTemp("", "labtest-")
	if err != nil {
		t.Fatal(err)
	}
	p.Dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	// The process and a number: no two labs of this machine share a name, so they share no cgroup.
	name := "t" + strconv.FormatInt(int64(os.Getpid()), 36) + "-" +
		strconv.FormatInt(labs.Add(1), 36) + "-"
	skew := map[string]time.Duration{}
	for n, ahead := range skewOf(o) {
		skew[name+strconv.Itoa(n+1)] = ahead
	}
	p.Lab, err = lab.Up(ctx, lab.Config{Skew: skew, MTU: o.MTU,
		Hosts: max(1, o.Hosts), Name: name, Self: p.Bin,
		Dir: filepath.Join(dir, "lab"), Leashed: true, OnlyIPv6: o.OnlyIPv6,
		Router: o.Router != nil})
	if err != nil {
		t.Fatal(err)
	}
	p.there = map[string][]string{}
	for _, h := range p.Lab.Hosts {
		p.Hosts = append(p.Hosts, h.Name)
		p.there[h.Name] = p.leaks(h.Name)
	}
	t.Cleanup(p.end)
	if o.Router != nil {
		if err := lab.Route(ctx, p.Lab, *o.Router); err != nil {
			t.Fatal(err)
		}
		p.flags = append(p.flags, "--announce", "bgp", "--bgp-router", lab.RouterFlag(p.Lab))
	}
	for n, h := range p.Hosts {
		switch {
		case o.Idle:
		case o.One && n > 0:
			p.Join(h)
		default:
			p.Up(h)
		}
	}
	return p
}

// skewOf returns how far the clocks of a lab's hosts are ahead. With PANDO_SKEW, such as 1m, the clocks of
// every lab differ: the second host is ahead, the third one is behind.
func skewOf(o Options) []time.Duration {
	by, err := time.ParseDuration(os.Getenv("PANDO_SKEW"))
	if o.Skew != nil || err != nil {
		return o.Skew
	}
	out := make([]time.Duration, o.Hosts)
	for n := range out {
		out[n] = []time.Duration{0, by, -by}[n%3]
	}
	return out
}

// In returns the same lab for a subtest, which fails on its own.
func (p *Pando) In(t testing.TB) *Pando {
	q := *p
	q.TB = t
	return &q
}

// Host returns the name of the first host.
func (p *Pando) Host() string { return p.Hosts[0] }

// Data returns the data folder of a host.
func (p *Pando) Data(host string) string { return filepath.Join(p.Dir, "data", host) }

// place returns the flags that give a host's daemons their place.
func (p *Pando) place(host string) []string {
	return append(append(p.folders(host), p.guard), p.flags...)
}

// folders returns the flags by which a command finds a host's daemons.
func (p *Pando) folders(host string) []string {
	return []string{"--data-dir", p.Data(host), "--host", host}
}

// Up starts Pando on a host, or restarts its ended parts.
func (p *Pando) Up(host string, flags ...string) {
	p.Helper()
	p.Must(host, append(append([]string{p.Bin, "up"}, p.place(host)...), flags...)...)
}

// TryUp is Up while a running daemon may be about to end. It returns the command's output, and
// whether everything is up.
func (p *Pando) TryUp(host string) (said string, ok bool) {
	p.Helper()
	out := p.Run(host, append([]string{p.Bin, "up"}, p.place(host)...)...)
	return out.Text, out.Code == 0
}

// Join makes a host a member of the cluster of the first host.
func (p *Pando) Join(host string) {
	p.Helper()
	p.Up(host, p.Invitation()...)
}

// Invitation returns the flags for a host to join the cluster of the first host.
func (p *Pando) Invitation() []string {
	p.Helper()
	var is struct{ Join, Token string }
	if err := json.Unmarshal([]byte(p.Pando("token", "-o", "json")), &is); err != nil {
		p.Fatalf("pando token -o json: %v", err)
	}
	return []string{"--join", is.Join, "--token", is.Token}
}

// UpFails starts Pando on a host where it must fail with an exit code. It returns the command's
// output.
func (p *Pando) UpFails(code int, host string, flags ...string) string {
	p.Helper()
	out := p.Run(host, append(append([]string{p.Bin, "up"}, p.place(host)...), flags...)...)
	if out.Code != code {
		p.Fatalf("pando up %s on %s: exit code %d, want %d\n%s", strings.Join(flags, " "), host, out.Code,
			code, out.Text)
	}
	return out.Text
}

// Down stops Pando on a host.
func (p *Pando) Down(host string, flags ...string) {
	p.Helper()
	p.Must(host, append(append([]string{p.Bin, "down"}, p.folders(host)...), flags...)...)
}

// API returns a client in the test's own process for the operators' API of a host.
func (p *Pando) API(host string) *api.Client {
	return api.NewClient(p.Path(host, "/run/pando/api.sock"), clock.Clock{})
}

// end takes the lab down in any state, and fails the test if a part of it stays.
func (p *Pando) end() {
	if p.Failed() {
		p.tellState()
	}
	for _, h := range p.Hosts {
		out := p.run(context.Background(), h,
			append([]string{p.Bin, "down", "--now", "--purge", "--force"}, p.folders(h)...)...)
		if out.Code != 0 && p.alive(h) {
			p.Errorf("pando down --purge on %s: %s", h, out.Text)
		}
	}
	if err := p.Lab.Down(); err != nil {
		p.Error(err)
	}
	for _, h := range p.Hosts {
		for _, left := range p.cgroups(h) {
			p.Errorf("left behind: cgroup %s", left)
		}
	}
}

// cgroups returns the groups of a host's sandboxes: they are the machine's, and outlive the host.
func (p *Pando) cgroups(host string) []string {
	found, err := filepath.Glob("/sys/fs/cgroup/*/pando-lab/*/" + host)
	if err != nil {
		p.Error(err)
	}
	v2, _ := filepath.Glob("/sys/fs/cgroup/pando-lab/*/" + host)
	return append(found, v2...)
}

// tellState prints the ends of the daemons' logs, and what an operator sees at each host that is up.
func (p *Pando) tellState() {
	for _, h := range p.Hosts {
		for _, words := range [][]string{{"ps"}, {"status"}, {"why", "web"}} {
			ctx, cancel := context.WithTimeout(context.Background(), Patience)
			out := p.run(ctx, h, append([]string{p.Bin}, words...)...)
			cancel()
			p.Logf("pando %s on %s:\n%s", strings.Join(words, " "), h, out.Text)
		}
		for _, role := range []string{"server", "agent"} {
			text, err := os.ReadFile(filepath.Join(p.Data(h), "log", role+".log"))
			if err != nil {
				continue
			}
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			p.Logf("the end of the %s's log on %s:\n%s", role, h,
				strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	}
}
