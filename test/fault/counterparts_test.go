package fault

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

// namedWithin bounds the time from the stop of a counterpart until every command names it. A busy
// machine gets three times as long.
const namedWithin = 5 * time.Second

// counterpart is something that others wait for.
type counterpart struct {
	name string
	from string // the host of the commands
	want string // in the output of each
	stop func()
	heal func()
	of   pando.ServiceName // "": the service of the test
}

// Each counterpart in turn is stopped or out of reach. `why`, `ps` and `status` name it, and again
// nothing once it answers.
func TestEachSilentCounterpartIsNamed(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	p.held.Stop()
	lead := p.leader(p.Host())
	others := p.others(lead)
	one, two := others[0], others[1]
	stopped := func(name, from, want, host, pid string) counterpart {
		return counterpart{name, from, want, func() { p.Must(host, "kill", "-STOP", pid) },
			func() { p.Must(host, "kill", "-CONT", pid) }, ""}
	}
	daemon := func(host, role string) string {
		return strings.TrimSpace(p.Must(host, "cat", "/run/pando/"+role+".pid"))
	}
	instance, shim := p.shimOn(two)
	all := []counterpart{
		stopped("a shim", one, instance, two, shim),
		stopped("an agent", one, "the agent of "+two+" does not answer", two, daemon(two, "agent")),
		stopped("a server beside the leader", one, "the server of "+two+" does not answer", two,
			daemon(two, "server")),
		stopped("the own server", two, "sign of life of the server behind /run/pando/api.sock", two,
			daemon(two, "server")),
		stopped("the leader", one, "the server of "+lead+" does not answer", lead,
			daemon(lead, "server")),
		p.faulty("a link between two hosts", lead, "between "+one+" and "+two, func() error {
			return p.Lab.Cut(one, two)
		}),
		p.faulty("a paused host", one, two, func() error { return p.Lab.Pause(two) }),
		p.faulty("a host that is cut off", one, two, func() error {
			if err := p.Lab.Cut(one, two); err != nil {
				return err
			}
			return p.Lab.Cut(lead, two)
		}),
		p.nameServer(two),
		p.hook(),
		p.registry(),
	}
	for _, c := range all {
		p.isNamed(t, c)
	}
}

// faulty returns a counterpart that a fault of the lab takes away.
func (p servers3) faulty(name, from, want string, fault func() error) counterpart {
	must := func(err error) {
		p.Helper()
		if err != nil {
			p.Fatal(err)
		}
	}
	return counterpart{name, from, want, func() { must(fault()) }, func() { must(p.Lab.Heal()) }, ""}
}

// shimOn returns an instance on a host, and the process of its shim.
func (p servers3) shimOn(host string) (instance, pid string) {
	p.Helper()
	records, err := filepath.Glob(p.Path(host, "/run/pando/sandbox/*/slot.json"))
	if err != nil {
		p.Fatal(err)
	}
	for _, file := range records {
		var slot struct {
			Instance string
			PID      int
		}
		b, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(b, &slot) == nil && slot.Instance != "" {
			return slot.Instance, strconv.Itoa(slot.PID)
		}
	}
	p.Fatalf("no instance on %s has a shim", host)
	return "", ""
}

// nameServer returns the resolver of a host that gets questions and never answers.
func (p servers3) nameServer(host string) counterpart {
	const at = "10.126.0.254" // the client
	file := p.Write("resolv.conf", "nameserver "+at+"\n")
	return counterpart{"a name server", p.Host(), "name servers do not answer " + host + ": " + at,
		func() {
			p.Must(host, "mount", "--bind", file, "/etc/resolv.conf")
			p.KillAgent(host)
			p.Up(host)
			p.Start(host, p.WithEcho(), "lookup", "example.org", pando.Gateway4.String())
		}, func() { p.Must(host, "umount", "/etc/resolv.conf") }, ""}
}

// says runs a command again and again until it names a counterpart, also while it still waits for it.
// It returns "" then, else the last output.
func (p servers3) says(c counterpart, began time.Time, command []string) (last string) {
	for time.Since(began) < 3*namedWithin {
		r := p.Start(c.from, append([]string{p.Bin}, command...)...)
		for done := false; !done; {
			done = r.Ended() // before its text is read
			if last = r.Text(); strings.Contains(last, c.want) {
				return ""
			}
			if !done && pando.Sleep(p.Context(), clock.Clock{}, 5*time.Millisecond) != nil {
				return last
			}
		}
	}
	return last + "(nothing more)"
}

// isNamed stops a counterpart, waits until each command names it, and heals it.
func (p servers3) isNamed(t *testing.T, c counterpart) {
	t.Helper()
	c.stop()
	began := time.Now()
	var asking sync.WaitGroup
	for _, command := range [][]string{{"why", string(cmp.Or(c.of, pando.ServiceName(p.web.Name)))}, {"ps"}, {"status"}} {
		asking.Go(func() {
			if said := p.says(c, began, command); said != "" {
				t.Errorf("%s is silent, and `pando %s` on %s prints\n%s", c.name,
					strings.Join(command, " "), c.from, said)
			}
		})
	}
	asking.Wait()
	t.Logf("%s is named after %s", c.name, time.Since(began).Round(10*time.Millisecond))
	c.heal()
	p.Await("all to be well after "+c.name, func() (string, bool) {
		var said []string
		for _, h := range p.Hosts {
			out := p.Run(h, p.Bin, "status")
			if out.Code != 0 || strings.Contains(out.Text, c.want) {
				said = append(said, fmt.Sprintf("%s: %s", h, out.Text))
			}
		}
		st := p.web.Status()
		well := st.InRotation == 3 && labtest.Running(st) == 3
		return fmt.Sprint(said, st.InRotation), c.name == "a name server" || len(said) == 0 && well
	})
}
