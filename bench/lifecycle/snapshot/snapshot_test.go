//go:build bench

// Package snapshot measures a program with 100 MB of memory: the stop of a snapshot, the time of a
// restore, and the stall that a client sees while the program moves to another virtual host. The
// client sends a line a millisecond over one connection and counts each answer. It also measures
// copies of a slow starter (examples/warm), from a snapshot and cold.
package snapshot

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/sheet"

	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

const (
	rounds   = 5
	mebibyte = 95 // of random ballast: the program has 100 MB with its interpreter
)

const program = `
import os, socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
ballast = os.urandom(int(sys.argv[1]) << 20)
Server(("0.0.0.0", 9000), Handler).serve_forever()
`

// client has one connection under load.
type client struct {
	conn  net.Conn
	stop  chan struct{}
	done  chan error
	lines int
	stall time.Duration // the longest wait since it was last read
	reads chan time.Duration
}

func (c *client) run() {
	in := bufio.NewReader(c.conn)
	var longest time.Duration
	for {
		select {
		case <-c.stop:
			c.done <- nil
			return
		case c.reads <- longest:
			longest = 0
		default:
		}
		began := time.Now()
		want := fmt.Sprintln(c.lines)
		err := c.conn.SetDeadline(began.Add(labtest.Patience))
		if err == nil {
			_, err = c.conn.Write([]byte(want))
		}
		var got string
		if err == nil {
			got, err = in.ReadString('\n')
		}
		if err == nil && got != want {
			err = fmt.Errorf("%q came back as %q", want, got)
		}
		if err != nil {
			c.done <- err
			return
		}
		c.lines++
		longest = max(longest, time.Since(began))
		timer, _ := clock.Clock{}.After(time.Millisecond)
		<-timer
	}
}

// longest returns the longest wait of the client since the last call.
func (c *client) longest(t *testing.T) time.Duration {
	t.Helper()
	select {
	case d := <-c.reads:
		return d
	case err := <-c.done:
		t.Fatalf("the connection broke after %d lines: %v", c.lines, err)
	case <-time.After(labtest.Patience):
		t.Fatal("the client has no answer")
	}
	return 0
}

// deploy deploys the program as a service.
func deploy(p *labtest.Pando, name, place string) *labtest.Service {
	return p.Deploy(fmt.Sprintf("name: %s\ncommand: [python3, %s/program.py, \"%d\"]\n"+
		"ports: [\"9000\"]\nhealth: {ready: tcp 9000}\nscale: {min: 1, max: 2}\nplace: {%s}\n",
		name, p.Dir, mebibyte, place))
}

func TestSnapshot(t *testing.T) {
	s := sheet.New(t, ".")
	n, _ := sheet.Rounds(rounds, 0)
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	p.Write("program.py", program)
	game := deploy(p, "game", "spread: host")
	game.AwaitInstances(1)
	conn, err := p.Dialer(labtest.Client)(game.VIP + ":9000")
	if err != nil {
		t.Fatal(err)
	}
	c := &client{conn: conn, stop: make(chan struct{}), done: make(chan error, 1),
		reads: make(chan time.Duration)}
	go c.run()
	for round := range n {
		move(t, s, p, game, c, round)
	}
	close(c.stop)
	if err := <-c.done; err != nil {
		t.Errorf("the connection broke after %d lines: %v", c.lines, err)
	}
	conn.Close()
	p.Pando("rm", "game", "--wait")
	still := deploy(p, "still", "only: host="+p.Host())
	for round := range n {
		snap(t, s, p, still, round)
	}
	p.Pando("rm", "still", "--wait")
	slow := slowStarters(p)
	for round := range n {
		for k := range slow {
			copies(p, s, slow[(k+round)%len(slow)], round)
		}
	}
	stall, stop := s.Median("migrate: stall of the client"), s.Median("migrate: stop")
	snapshot, restore := s.Median("snapshot: stop"), s.Median("restore: in rotation")
	s.Row("migrate 100 MB with an open connection under load: stall of the client, p50",
		"≤ 400 ms", "",
		fmt.Sprintf("%.0f ms (stop %.0f ms; %d lines, 0 resets, 0 lost)", stall, stop, c.lines),
		stall <= 400)
	s.Row("snapshot of 100 MB: stop of the program, p50", "≤ 400 ms", "",
		fmt.Sprintf("%.0f ms", snapshot), snapshot <= 400)
	s.Row("restore of 100 MB: ask → in rotation, p50", "≤ 250 ms", "",
		fmt.Sprintf("%.0f ms", restore), restore <= 250)
	sooner := s.Ratio("cold: in rotation", "warm: in rotation")
	s.Row("replicate from snapshot against a cold start, a Python service with a slow import "+
		"(examples/warm)", "≥ 8 × sooner", "", fmt.Sprintf("%.1f × (%.0f against %.0f ms p50)", sooner,
		s.Median("warm: in rotation"), s.Median("cold: in rotation")), sooner >= 8)
	s.Publish("Snapshot, restore and migrate", "ms", "--log")
}

// move moves the instance to the other host.
func move(t *testing.T, s *sheet.Sheet, p *labtest.Pando, game *labtest.Service, c *client,
	round int) {
	to := p.Hosts[0]
	if string(game.AwaitInstances(1).Instances[0].Host) == to {
		to = p.Hosts[1]
	}
	c.longest(t)
	var st pando.MoveStatus
	said := p.Pando("migrate", "game", "--to", to, "-o", "json")
	if err := json.Unmarshal([]byte(said), &st); err != nil {
		t.Fatal(err)
	}
	s.Note(round, "migrate: stop", st.StoppedSeconds*1000)
	s.Note(round, "migrate: stall of the client", float64(c.longest(t))/1e6)
}

// snap takes a snapshot of the instance, and restores it as a second one on its host. One of the
// two then leaves.
func snap(t *testing.T, s *sheet.Sheet, p *labtest.Pando, still *labtest.Service, round int) {
	still.AwaitInstances(1)
	var st pando.SnapshotStatus
	if err := json.Unmarshal([]byte(p.Pando("snapshot", "still", "-o", "json")), &st); err != nil {
		t.Fatal(err)
	}
	s.Note(round, "snapshot: stop", st.StoppedSeconds*1000)
	var i pando.Intent
	said := p.Pando("restore", "still", "--from", strings.TrimPrefix(st.Digest, "sha256:"), "-o",
		"json")
	if err := json.Unmarshal([]byte(said), &i); err != nil {
		t.Fatal(err)
	}
	for _, one := range still.AwaitInstances(2).Instances {
		if one.ID == i.Instance {
			s.Note(round, "restore: in rotation", float64(one.Since.Sub(one.Born))/1e6)
		}
	}
	p.Pando("scale", "still", "1", "--wait")
	still.AwaitInstances(1)
	p.Pando("scale", "still", "auto")
}

// slowStarters deploys examples/warm, with copies from a snapshot and without.
func slowStarters(p *labtest.Pando) (all []*labtest.Service) {
	p.Helper()
	const line = "replicate: {from: snapshot}\n"
	if err := os.CopyFS(p.Dir, os.DirFS("../../../examples/warm")); err != nil {
		p.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(p.Dir, "pando.yaml"))
	if err != nil || strings.Count(string(text), line) != 1 {
		p.Fatalf("examples/warm has no %q: %v", line, err)
	}
	spec := "place: {only: host=" + p.Host() + "}\n" + string(text)
	cold := strings.NewReplacer(line, "", "name: warm", "name: cold").Replace(spec)
	for _, text := range []string{spec, cold} {
		s := p.DeployFile(p.Write("pando.yaml", text))
		s.AwaitInstances(1)
		all = append(all, s)
	}
	return all
}

// copies asks for a second instance and notes the time from its birth until it is in rotation. One
// of the two then leaves.
func copies(p *labtest.Pando, s *sheet.Sheet, of *labtest.Service, round int) {
	p.Helper()
	var first pando.InstanceID
	for _, one := range of.AwaitInstances(1).Instances {
		first = one.ID
	}
	p.Pando("scale", of.Name, "2", "--wait")
	for _, one := range of.AwaitInstances(2).Instances {
		if one.ID != first && of.Name == "warm" && one.From == "" {
			p.Fatalf("a copy started cold: %s", of.Why())
		}
		if one.ID != first {
			s.Note(round, of.Name+": in rotation", float64(one.Since.Sub(one.Born))/1e6)
		}
	}
	p.Pando("scale", of.Name, "1", "--wait")
	of.AwaitInstances(1)
	p.Pando("scale", of.Name, "auto")
}
