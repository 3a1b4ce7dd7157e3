package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// guest is an open connection and the instance that answers it.
type guest struct {
	conn net.Conn
	in   *bufio.Reader
	by   string
}

// ask makes one request and returns the name of the instance that answers.
func (g *guest) ask() (string, error) {
	if err := g.conn.SetDeadline(time.Now().Add(labtest.Patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(g.conn, "GET / HTTP/1.1\r\nHost: web.pando\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(g.in, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// TestConnectionsMoveToAnotherIngressHost changes the client's route to the VIPs under open
// connections, while instances come, drain and are replaced. No connection breaks.
func TestConnectionsMoveToAnotherIngressHost(t *testing.T) {
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	spec := func(text string) string {
		return labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 20}",
			"environment: {TEXT: "+text+"}")
	}
	web := p.Deploy(spec("one"))
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	dial := p.Dialer(labtest.Client)
	var guests []*guest
	welcome := func(n int) {
		t.Helper()
		for range n {
			conn, err := dial(web.VIP + ":80")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			g := &guest{conn: conn, in: bufio.NewReader(conn)}
			if g.by, err = g.ask(); err != nil {
				t.Fatal(err)
			}
			guests = append(guests, g)
		}
	}
	turn, broken := 0, 0
	move := func(after string) {
		t.Helper()
		for range p.Hosts {
			turn++
			via := p.Lab.Hosts[turn%len(p.Hosts)].IPv4
			p.Must(labtest.Client, "ip", "route", "replace", "10.127.0.0/16", "via", via)
			for _, g := range guests {
				if by, err := g.ask(); err != nil || by != g.by {
					broken++
					t.Errorf("after %s, by %s: a connection to %q is answered by %q, %v", after, via, g.by,
						by, err)
				}
			}
			if broken > 0 {
				t.FailNow()
			}
		}
	}
	welcome(30)
	move("the start")
	p.Pando("scale", "web", "6", "--wait")
	move("three more instances")
	welcome(30)
	p.Pando("scale", "web", "3")
	move("the drain of three")
	p.Pando("scale", "web", "6")
	web.Await("six again", func(st pando.ServiceStatus) bool { return st.InRotation == 6 })
	welcome(10)
	move("their return")
	web.Update(spec("two"))
	move("a rollout")
	p.KillAgent(p.Hosts[1])
	move("the death of an agent")
	t.Logf("%d connections, %d moves: %d broken", len(guests), turn, broken)
}
