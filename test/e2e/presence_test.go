package e2e

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestADeadHostLeavesRotation kills one of three hosts. Both others find it dead, and send it no
// more new connections.
func TestADeadHostLeavesRotation(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Flags: []string{"--pool", "1"}})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 3}"))
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	p.KillHost(three)
	began := time.Now()
	for _, host := range []string{one, two} {
		p.Await(three+" to be dead for "+host, func() (string, bool) {
			out := p.Run(host, "cat", p.Data(host)+"/log/agent.log") // the lease may end meanwhile
			return out.Text, strings.Contains(out.Text, "dead by the probes: ") &&
				strings.Contains(out.Text, "host="+three)
		})
	}
	t.Logf("both hosts found it dead within %v", time.Since(began))
	for range 12 {
		for _, from := range []string{labtest.Client, one, two} {
			web.Get(from, "/")
		}
	}
}
