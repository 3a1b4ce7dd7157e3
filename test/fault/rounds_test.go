package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// asking sends requests to the service, one after another, and writes a line for each.
const asking = `while :; do if curl -sS --fail --max-time 20 -o /dev/null "$0"; then echo ok; ` +
	`else echo bad; fi; done`

// killRounds is how often each daemon is killed. PANDO_ROUNDS sets another number: 20 in the soak.
func killRounds(t *testing.T) int { return numberOf(t, "PANDO_ROUNDS", 2) }

// numberOf returns the number in an environment variable, or another one without it.
func numberOf(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q", name, text)
	}
	return n
}

// Daemons are killed in turn under load: the leader, another server, an agent. No request fails, no
// connection breaks, nothing runs twice, and the next decision is made each time.
func TestDaemonsKilledInTurnUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	p.settled(3)
	load := p.Start(labtest.Client, "sh", "-c", asking, p.web.URL("/"))
	load.AwaitText("ok")
	rounds, killed := killRounds(t), map[string]int{}
	want := 3
	for n := range rounds {
		lead := p.leader(p.Hosts[n%3])
		rest := p.others(lead)
		for _, one := range []struct {
			role, host string
			kill       func(string)
		}{
			{"leader", lead, p.KillServer}, {"server", rest[0], p.KillServer},
			{"agent", rest[1], p.KillAgent},
		} {
			one.kill(one.host)
			killed[one.role]++
			p.Await("the daemons of "+one.host, func() (string, bool) { return p.TryUp(one.host) })
			want = 7 - want // 3 and 4 in turn
			p.Await("a decision", func() (string, bool) {
				out := p.Run(one.host, p.Bin, "scale", "web", fmt.Sprint(want))
				return out.Text, out.Code == 0
			})
			p.serves(want)
		}
	}
	p.unbroken()
	p.settled(want)
	lines := load.Stop().Text
	good, bad := strings.Count(lines, "ok\n"), strings.Count(lines, "bad\n")
	if bad > 0 || good == 0 {
		t.Errorf("%d of %d requests failed: %s", bad, good+bad, lines[max(0, len(lines)-500):])
	}
	t.Logf("killed %v; %d requests, %d failed; %d instances, none twice", killed, good+bad, bad, want)
}
