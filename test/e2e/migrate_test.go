package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// echoes sends every line back. Its count is in memory, and the rest is ballast.
const echoes = `
import os, socketserver, sys
count = 0
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        global count
        for line in self.rfile:
            count += 1
            self.wfile.write(b"%d " % count + line)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
ballast = os.urandom(int(sys.argv[1]) << 20)
Server(("0.0.0.0", 9000), Handler).serve_forever()
`

func echoSpec(p *labtest.Pando, mebibytes int, lines ...string) string {
	return strings.Replace(counterSpec(p, mebibytes, lines...),
		filepath.Join(p.Dir, "counter.py"), p.Write("echoes.py", echoes), 1)
}

// chat is a conversation over one connection: each line must come back once, in order.
type chat struct {
	from  string
	stop  chan struct{}
	done  sync.WaitGroup
	lines int
	count atomic.Int64 // of the program, as last answered
	// skipped counts answers that do not have the next count: other connections, or another copy.
	skipped int
	gap     time.Duration // the longest wait for an answer
	err     error
}

// open connects from a host.
func open(p *labtest.Pando, from, address string) (conn net.Conn) {
	p.Helper()
	dial := p.Dialer(from)
	p.Await("a connection from "+from, func() (string, bool) { // its table may be older
		var err error
		conn, err = dial(address)
		return fmt.Sprint(err), err == nil
	})
	p.Cleanup(func() { conn.Close() })
	return conn
}

// sendsOnce sends a line on an idle connection. The socket must count it as sent, or it refuses the
// answer.
func sendsOnce(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = c.SetDeadline(time.Now().Add(labtest.Patience))
	}
	if err == nil {
		_, err = fmt.Fprintln(c, "hello")
	}
	var info *unix.TCPInfo
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.Notsent_bytes > 0 {
		t.Errorf("%s waits with %d bytes", c.LocalAddr(), info.Notsent_bytes)
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.HasSuffix(answer, " hello\n") {
		t.Errorf("%s got %q, %v", c.LocalAddr(), answer, err)
	}
}

func startChat(t *testing.T, p *labtest.Pando, from, address string) *chat {
	t.Helper()
	conn := open(p, from, address)
	k := &chat{from: from, stop: make(chan struct{})}
	k.done.Go(func() {
		defer conn.Close()
		k.run(conn)
	})
	return k
}

func (k *chat) run(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		select {
		case <-k.stop:
			return
		default:
		}
		began := time.Now()
		if k.err = conn.SetDeadline(began.Add(labtest.Patience)); k.err != nil {
			return
		}
		want := fmt.Sprintf("%s %d", k.from, k.lines)
		fmt.Fprintln(conn, want)
		got, err := in.ReadString('\n')
		count, text, _ := strings.Cut(strings.TrimSpace(got), " ")
		if err == nil && text != want {
			err = fmt.Errorf("%q came back as %q", want, got)
		}
		if k.err = err; err != nil {
			return
		}
		n, _ := strconv.ParseInt(count, 10, 64)
		if last := k.count.Swap(n); last > 0 && n != last+1 {
			k.skipped++
		}
		k.lines++
		k.gap = max(k.gap, time.Since(began))
	}
}

func (k *chat) end(t *testing.T) {
	t.Helper()
	close(k.stop)
	k.done.Wait()
	t.Logf("from %s: %d lines, the longest wait %s", k.from, k.lines, k.gap)
	if k.err != nil || k.lines == 0 {
		t.Errorf("from %s: after %d lines: %v", k.from, k.lines, k.err)
	}
}

func moveTo(p *labtest.Pando, what, to string) (st pando.MoveStatus) {
	p.Helper()
	said := p.Pando("migrate", what, "--to", to, "-o", "json")
	if err := json.Unmarshal([]byte(said), &st); err != nil {
		p.Fatal(err)
	}
	p.Logf("%s moved from %s to %s: %d bytes, %d of them in the stop of %.0f ms",
		st.Instance, st.From, st.To, st.Bytes, st.StoppedBytes, st.StoppedSeconds*1000)
	return st
}

// An instance moves around three hosts. Connections from a client and from every host continue.
func TestAnInstanceMovesWithItsConnections(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Flags: []string{"--pool", "1"}})
	game := p.Deploy(echoSpec(p, 10, "scale: {min: 1, max: 1}", "place: {spread: host}"))
	first := game.AwaitInstances(1).Instances[0]
	var talks []*chat
	for _, from := range append([]string{labtest.Client}, p.Hosts...) {
		talks = append(talks, startChat(t, p, from, game.VIP+":9000"))
	}
	local := map[string]net.Conn{}
	for _, h := range p.Hosts {
		local[h] = open(p, h, game.VIP+":9000")
	}
	at := string(first.Host)
	for n := range 3 {
		to := p.Hosts[(n+1)%3]
		if to == at {
			continue
		}
		st := moveTo(p, string(first.ID), to)
		if string(st.From) != at || string(st.To) != to || st.StoppedSeconds <= 0 {
			t.Errorf("from %s to %s: %+v", at, to, st)
		}
		sendsOnce(t, local[at]) // the host that it left has no entry of the flow any more
		at = to
		now := game.AwaitInstances(1).Instances[0]
		if now.ID != first.ID || string(now.Host) != to {
			t.Errorf("%s is on %s, want %s on %s", now.ID, now.Host, first.ID, to)
		}
	}
	for _, k := range talks {
		k.end(t)
	}
	has(t, p.Pando("why", "game"), "move", "was stopped for")
	has(t, p.PandoFails(5, "migrate", "game", "--to", at), "has it already")
	has(t, p.PandoFails(4, "migrate", "game", "--to", "nowhere"), "pando hosts")
}

// An instance of a bundle moves to a host that never had the files, and back, five times of five.
func TestAnInstanceOfABundleMoves(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	if err := os.Mkdir(filepath.Join(p.Dir, "site"), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(p.WithEcho())
	if err != nil {
		t.Fatal(err)
	}
	p.Write(filepath.Join("site", "echo"), string(program))
	web := p.Deploy("name: web\nbundle: site\ncommand: [./echo]\nports: [\"80:8080\"]\n" +
		"health: {ready: \"tcp 8080\"}\nscale: {min: 1, max: 1}\n" +
		"environment: {GODEBUG: multipathtcp=0}\n")
	first := web.AwaitInstances(1).Instances[0]
	at := string(first.Host)
	for range 5 {
		to := p.Hosts[0]
		if to == at {
			to = p.Hosts[1]
		}
		moveTo(p, string(first.ID), to)
		now := web.AwaitInstances(1).Instances[0]
		if now.ID != first.ID || string(now.Host) != to {
			t.Errorf("%s is on %s, want %s on %s", now.ID, now.Host, first.ID, to)
		}
		if got := web.Get(labtest.Client, "/"); got != string(first.ID) {
			t.Errorf("on %s it answers %q", to, got)
		}
		at = to
	}
}

// A refused move names its cause and the next command, and the program serves on.
func TestARefusedMoveLeavesTheProgramServing(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	game := p.Deploy(echoSpec(p, 1, "scale: {min: 1, max: 1}", "place: {spread: host}"))
	at := string(game.AwaitInstances(1).Instances[0].Host)
	other := p.Hosts[0]
	if at == other {
		other = p.Hosts[1]
	}
	p.Deploy("name: notes\ncommand: [sleep, inf]\nvolumes: ['notes:/notes']\n" +
		"health: {ready: started}").AwaitInstances(1)
	p.Deploy("name: sleeper\ncommand: [sleep, inf]\nscale: {min: 0, max: 1}\n" +
		"health: {ready: started}")
	k := startChat(t, p, labtest.Client, game.VIP+":9000")
	refused := func(code int, what, to string, want ...string) {
		t.Helper()
		before := k.count.Load()
		has(t, p.PandoFails(code, "migrate", what, "--to", to), want...)
		p.Await("two more answers", func() (string, bool) {
			return "none", k.count.Load() > before+2
		})
	}
	refused(5, "game", at, "has it already", "pando hosts")
	refused(4, "game", "nowhere", "nowhere", "pando hosts")
	refused(5, "notes", other, "its volumes are on its host", "pando why")
	refused(6, "sleeper", other, "no instance", "pando ps")
	p.KillAgent(other)
	refused(13, "game", other, "does not answer", "pando hosts")
	p.Await("the end of the host's lease", func() (string, bool) {
		out := p.Run(p.Host(), p.Bin, "migrate", "game", "--to", other)
		return out.Text, strings.Contains(out.Text, other+" is away")
	})
	refused(13, "game", other, "is away", "pando hosts")
	k.end(t)
	if k.skipped > 0 {
		t.Errorf("the count of the program jumped %d times", k.skipped)
	}
	has(t, p.Pando("why", "game"), "it failed, and the instance stays")
}
