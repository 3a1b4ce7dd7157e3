//go:build bench

// Package zero measures the first connection to a service without an instance: from its first SYN
// to its first byte. The instance starts as a process, or from the warm reserve. The peer is
// systemd's socket activation of the same program, without a sandbox. Each round measures every
// way.
package zero

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds = 5
	trials = 7 // of each way in a round
	idle   = time.Second
	rest   = 500 * time.Millisecond // the host clears the last instance away meanwhile
	port   = 8090                   // of the peer
)

// way is one way from no instance to an answer.
type way struct {
	name, address string
	// ready waits until a first connection starts the program, and done ends it.
	ready, done func()
}

func TestZero(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	ways := []way{service(p, "process", 0), service(p, "warm", 1), activated(p)}
	out := sheet.New(t, ".")
	dial := p.Dialer(labtest.Client)
	again := 0
	for round := range rounds {
		for n := range ways {
			w := ways[(n+round)%len(ways)]
			var took []float64
			for range trials {
				w.ready()
				<-time.After(rest)
				before := counted(p)
				ms := first(t, dial, w.address)
				c := counted(p)
				if opened := c.opened - before.opened; opened != 1 {
					t.Errorf("%s: the client opened %d connections, want 1", w.name, opened)
				}
				if c.repeated != before.repeated && w.name != peer {
					again++
				}
				took = append(took, ms)
				w.done()
			}
			out.Note(round, w.name, sheet.Quantile(took, .5))
			out.Keep(w.name+", worst", sheet.Quantile(took, 1))
		}
	}
	rows(out, again)
	out.Publish("From zero: the first SYN to the first byte", "ms")
}

func rows(out *sheet.Sheet, again int) {
	row := func(name, goal string, most float64) {
		m := out.Median(name)
		out.Row("from zero: first SYN → first byte, "+name, goal, "", fmt.Sprintf(
			"%.1f ms (worst of %d: %.1f ms)", m, rounds*trials, out.Quantile(name+", worst", 1)), m <= most)
	}
	row("process", "≤ 30 ms", 30)
	row("warm", "≤ 10 ms", 10)
	out.Row("from zero: first connections that repeated a segment, by the client's counters", "0", "",
		fmt.Sprintf("%d of %d", again, 2*rounds*trials), again == 0)
	out.Row("from zero: "+peer+", the same program without a sandbox", "", "",
		fmt.Sprintf("%.1f ms; a process of Pando %.2f ×, a warm one %.2f ×", out.Median(peer),
			out.Ratio("process", peer), out.Ratio("warm", peer)), true)
}

// service deploys the worker with no instance at first.
func service(p *labtest.Pando, name string, warm int) way {
	s := p.Deploy(fmt.Sprintf("name: %s\ncommand: [./worker]\nports: [\"80:8080\"]\n"+
		"health: {ready: tcp 8080}\nscale: {min: 0, max: 2, warm: %d, idle: %s}\n", name, warm,
		labtest.Brief(idle)))
	return way{name: name, address: s.VIP + ":80", done: func() {}, ready: func() {
		s.Await("no instance, and the reserve", func(st pando.ServiceStatus) bool {
			reserve := 0
			for _, i := range st.Instances {
				if i.Phase == pando.PhaseWarm {
					reserve++
				}
			}
			return reserve == warm && len(st.Instances) == warm && st.InRotation == 0
		})
	}}
}

const peer = "socket activation"

// activated listens on the host for the worker, and starts it at the first connection.
func activated(p *labtest.Pando) way {
	var r *labtest.Process
	at := strconv.Itoa(port)
	return way{name: peer, address: load.HostAddress(p, port), ready: func() {
		r = p.Start(p.Host(), "systemd-socket-activate", "-l", at, p.Dir+"/worker")
		p.Await("the socket of "+peer, func() (string, bool) {
			out := p.Must(p.Host(), "ss", "-Hltn", "sport = :"+at)
			return out + r.Text(), strings.Contains(out, ":"+at)
		})
	}, done: func() { r.Stop() }}
}

// first opens a connection, asks, and returns the time until the first byte in milliseconds.
func first(t *testing.T, dial func(string) (net.Conn, error), address string) float64 {
	t.Helper()
	begin := time.Now()
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(begin.Add(labtest.Patience))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
	if _, err := bufio.NewReader(c).ReadByte(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin).Seconds() * 1000
}

// counters are those of the client's kernel.
type counters struct{ opened, repeated int }

func counted(p *labtest.Pando) (c counters) {
	p.Helper()
	text := p.Must(labtest.Client, "nstat", "-asz", "TcpActiveOpens", "TcpRetransSegs",
		"TcpExtTCPSynRetrans")
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		n, _ := strconv.Atoi(words[1])
		switch words[0] {
		case "TcpActiveOpens":
			c.opened = n
		case "TcpRetransSegs", "TcpExtTCPSynRetrans":
			c.repeated += n
		}
	}
	return c
}
