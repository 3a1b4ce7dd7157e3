package labtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab"
)

// Members are the hosts of a lab and its client. Commands run in their namespaces. The methods end
// the test on an error.
type Members struct {
	testing.TB
	Lab *lab.Lab
}

// look is the time between two looks at a condition.
const look = 5 * time.Millisecond

// Path returns the path to a file of a host for the test's own process.
func (m *Members) Path(host, file string) string {
	m.Helper()
	return fmt.Sprintf("/proc/%d/root%s", m.pid(host), file)
}

// pid returns the process that holds the namespaces of a member.
func (m *Members) pid(host string) int {
	m.Helper()
	for _, h := range append(m.Lab.Hosts[:len(m.Lab.Hosts):len(m.Lab.Hosts)], m.Lab.Client,
		m.Lab.Router) {
		if h.Name == host {
			return h.Pid
		}
	}
	m.Fatalf("the lab has no host %q", host)
	return 0
}

// Await waits until the condition holds. On failure it reports the condition and the last
// observation.
func (m *Members) Await(what string, holds func() (seen string, ok bool)) {
	m.Helper()
	m.AwaitFor(Patience, what, holds)
}

// AwaitFor is Await with another patience, for programs that take their time.
func (m *Members) AwaitFor(patience time.Duration, what string, holds func() (string, bool)) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	for {
		seen, ok := holds()
		if ok {
			return
		}
		if pando.Sleep(ctx, clock.Clock{}, look) != nil {
			m.Fatalf("waited %s for %s; last seen: %s", patience, what, seen)
		}
	}
}

// KillHost ends a host with all its processes, as a power cut would.
func (m *Members) KillHost(host string) {
	m.Helper()
	if err := m.Lab.Kill(host); err != nil {
		m.Fatal(err)
	}
}

// alive reports whether a host still runs.
func (m *Members) alive(host string) bool {
	for _, h := range m.Lab.List() {
		if h.Name == host {
			return true
		}
	}
	return false
}
