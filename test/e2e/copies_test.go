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

// TestAcknowledgedStateOutlivesItsHost kills the keeper of a state with two copies under load. The
// service moves to the other copy, with every acknowledged commit and none twice.
func TestAcknowledgedStateOutlivesItsHost(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	p.Deploy(labtest.Echo("filler", "place: {only: host="+p.Hosts[0]+"}",
		"scale: {min: 4, max: 4}"))
	s := p.Deploy(till)
	defer func() {
		if p.Failed() {
			p.Log(p.Run(p.Host(), p.Bin, "why", s.Name).Text)
			p.Log(p.Run(p.Host(), p.Bin, "status", s.Name, "-o", "json").Text)
		}
	}()
	st := s.Await("two copies", func(st pando.ServiceStatus) bool {
		return st.Keeper != nil && len(st.Keeper.Copies) == 2
	})
	first := string(st.Keeper.Host)
	if first == p.Host() {
		t.Fatalf("the keeper is %s, which has the server", first)
	}
	tried, paid := 0, 0
	pay := func() (string, bool) {
		tried++
		out := p.Run(labtest.Client, "curl", "-sS", "--fail", "--max-time", "5", "-X", "POST",
			s.URL("/"))
		if out.Code == 0 {
			paid++
		}
		return out.Text, out.Code == 0
	}
	for range 20 {
		p.Await("a commit", pay)
	}
	p.KillHost(first)
	s.Await("another keeper", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && st.Keeper != nil && string(st.Keeper.Host) != first &&
			len(st.Keeper.Copies) == 2
	})
	for range 20 {
		p.Await("a commit by the other keeper", pay)
	}
	total, err := strconv.Atoi(strings.TrimSpace(s.Get(labtest.Client, "/")))
	if err != nil || total < paid || total > tried {
		t.Errorf("the total is %d (%v) after %d acknowledged of %d commits", total, err, paid, tried)
	}
	t.Logf("%d commits acknowledged, 0 lost, keeper %s died", paid, first)
}
