package e2e

import (
	"strconv"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// till adds 1 to its total for each POST, and answers once main contains it. A GET answers the
// total.
const till = `name: till
state: {copies: 2, total: counter}
ports: ["80:8080"]
health: {ready: "tcp 8080"}
command:
- python3
- -uc
- |
  import http.client, http.server, os, socket
  class Self(http.client.HTTPConnection):
      def connect(self):
          self.sock = socket.socket(socket.AF_UNIX)
          self.sock.connect(os.environ["PANDO_SOCKET"])
  def ask(method, path, body=None):
      to = Self("pando")
      to.request(method, "/v1/self/state" + path, body)
      answer = to.getresponse()
      return answer.status, answer.read()
  class Till(http.server.BaseHTTPRequestHandler):
      def do_POST(self):
          if ask("PATCH", "/total", "1")[0] >= 300 or ask("POST", "/push")[0] >= 300:
              return self.send_error(503)
          self.do_GET()
      def do_GET(self):
          status, total = ask("GET", "/total")
          self.send_response(status)
          self.end_headers()
          self.wfile.write(total)
  http.server.HTTPServer(("", 8080), Till).serve_forever()
`

// payments counts the commits of a client.
type payments struct {
	p           *labtest.Pando
	s           *labtest.Service
	tried, paid int
}

// paying deploys the till with two copies on three hosts, and returns its keeper, which has no
// server.
func paying(t *testing.T) (m *payments, keeper string) {
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	p.Deploy(labtest.Echo("filler", "place: {only: host="+p.Hosts[0]+"}",
		"scale: {min: 4, max: 4}"))
	m = &payments{p: p, s: p.Deploy(till)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Run(p.Host(), p.Bin, "why", m.s.Name).Text)
			t.Log(p.Run(p.Host(), p.Bin, "status", m.s.Name, "-o", "json").Text)
		}
	})
	st := m.s.Await("two copies", func(st pando.ServiceStatus) bool {
		return st.Keeper != nil && len(st.Keeper.Copies) == 2
	})
	if keeper = string(st.Keeper.Host); keeper == p.Host() {
		t.Fatalf("the keeper is %s, which has the server", keeper)
	}
	return m, keeper
}

// pay makes one commit and reports whether it was acknowledged.
func (m *payments) pay() (string, bool) {
	m.tried++
	out := m.p.Run(labtest.Client, "curl", "-sS", "--fail", "--max-time", "5", "-X", "POST",
		m.s.URL("/"))
	if out.Code == 0 {
		m.paid++
	}
	return out.Text, out.Code == 0
}

// moved waits until another host than the former keeper has the state, with two copies.
func (m *payments) moved(former string) {
	m.p.Helper()
	m.s.Await("another keeper", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && st.Keeper != nil && string(st.Keeper.Host) != former &&
			len(st.Keeper.Copies) == 2
	})
}

// verify compares the total with the commits: each acknowledged one is there, and none twice.
func (m *payments) verify() {
	m.p.Helper()
	total, err := strconv.Atoi(strings.TrimSpace(m.s.Get(labtest.Client, "/")))
	if err != nil || total < m.paid || total > m.tried {
		m.p.Errorf("the total is %d (%v) after %d acknowledged of %d commits", total, err, m.paid,
			m.tried)
	}
}

// TestAcknowledgedStateOutlivesItsHost kills the keeper of a state with two copies under load. The
// service moves to the other copy, with every acknowledged commit and none twice.
func TestAcknowledgedStateOutlivesItsHost(t *testing.T) {
	t.Parallel()
	m, first := paying(t)
	for range 20 {
		m.p.Await("a commit", m.pay)
	}
	m.p.KillHost(first)
	m.moved(first)
	for range 20 {
		m.p.Await("a commit by the other keeper", m.pay)
	}
	m.verify()
	t.Logf("%d commits acknowledged, 0 lost, keeper %s died", m.paid, first)
}

// TestAKeeperThatIsCutOffLosesNoCommit cuts the keeper of a state from all servers and hosts, while
// its clients reach it. It acknowledges nothing alone, and gives up its copy after the cut.
func TestAKeeperThatIsCutOffLosesNoCommit(t *testing.T) {
	t.Parallel()
	m, first := paying(t)
	for range 10 {
		m.p.Await("a commit", m.pay)
	}
	for _, h := range m.p.Hosts {
		if h == first {
			continue
		}
		if err := m.p.Lab.Cut(first, h); err != nil {
			t.Fatal(err)
		}
	}
	own := m.p.Run(first, m.p.Bin, "scale", m.s.Name, "1")
	if own.Code == 0 {
		t.Errorf("a command on the cut host decided: %s", own.Text)
	}
	for range 10 { // to the cut instance, or to its successor
		_, _ = m.pay()
	}
	m.moved(first)
	for range 10 {
		m.p.Await("a commit by the other keeper", m.pay)
	}
	if err := m.p.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	m.s.Await("one instance, on another host", func(st pando.ServiceStatus) bool {
		return len(st.Instances) == 1 && st.InRotation == 1 && string(st.Instances[0].Host) != first
	})
	awaitState(m.p, first, pando.HostHere)
	for range 10 {
		m.p.Await("a commit after the cut", m.pay)
	}
	m.verify()
	t.Logf("%d of %d commits acknowledged, 0 lost, keeper %s was cut off", m.paid, m.tried, first)
}
