//go:build bench

// Package kill kills one of three instances under load, as a crash would, and counts the requests
// that fail or are late. The peer is the system of the container-devops paper on a host of its own:
// a sidekick for each crun container, etcd, a watcher of templates and HAProxy. Both run the same
// program, which takes two seconds to start. Each round measures every way.
package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds      = 5
	instances   = 3
	rate        = 500.0 // requests per second, each with a connection of its own
	lasts       = 6 * time.Second
	requestsMin = 5000                   // of all rounds
	killed      = 2 * time.Second        // since the begin of the load
	late        = 100 * time.Millisecond // an answer after that is a late one
	patience    = 6 * time.Second
	settled     = 500 * time.Millisecond // since the kill: an answer of the dead one is behind
)

// program is the environment of the program: 5 ms for a request, 2 s for its start.
var program = []string{"SLEEP=5", "START=2000"}

// way is one way to three instances.
type way struct {
	name, address string
	victim        func() string // the name of one instance
}

const (
	own        = "Pando"
	plain      = "etcd + watcher + HAProxy"
	redispatch = "the same with redispatch"
)

func TestKill(t *testing.T) {
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, Idle: true})
	p.Up(p.Host())
	load.Worker(t, p)
	web := deploy(p)
	peer, end := stack(p, p.Hosts[1])
	defer end()
	host := p.Lab.Hosts[1].IPv4
	ways := []way{
		{own, web.VIP + ":80", func() string { return string(web.Status().Instances[0].ID) }},
		{plain, host + ":8000", func() string { return peer }},
		{redispatch, host + ":8001", func() string { return peer }},
	}
	out := sheet.New(t, ".")
	n, _ := sheet.Rounds(rounds, 0)
	dial := load.DialerOf(p, 256)
	for round := range n {
		for k := range ways {
			w := ways[(k+round)%len(ways)]
			complete(p, w)
			measure(p, w, out, round, dial)
		}
	}
	for _, w := range ways {
		row(out, w.name)
	}
	out.Publish("One of three instances is killed under load", "requests, or s", "--log")
}

// deploy deploys the program on the first host.
func deploy(p *labtest.Pando) *labtest.Service {
	p.Helper()
	env := strings.ReplaceAll(strings.Join(program, "\", "), "=", ": \"") + "\""
	s := p.Deploy(fmt.Sprintf("name: web\ncommand: [./worker]\nenvironment: {%s}\n"+
		"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nscale: {min: %d, max: %d}\n", env, instances,
		instances))
	s.AwaitInstances(instances)
	return s
}

// complete waits until all instances of a way answer.
func complete(p *labtest.Pando, w way) {
	p.Helper()
	p.Await("all instances of "+w.name, func() (string, bool) {
		seen := map[string]bool{}
		all := load.Load{Dial: load.Dialer(p), Address: w.address, Rate: load.Always(200),
			Lasts: 300 * time.Millisecond, Patience: time.Second}.Run()
		for _, r := range all {
			if r.OK {
				seen[r.By] = true
			}
		}
		return fmt.Sprint(seen), len(seen) == instances && load.Answered(all) == len(all)
	})
}

// measure kills an instance under load and notes the replies.
func measure(p *labtest.Pando, w way, out *sheet.Sheet, round int, dial load.Dial) {
	p.Helper()
	victim := w.victim()
	pid := find(p, victim)
	all := make(chan []load.Reply)
	begin := time.Now()
	go func() {
		all <- load.Load{Dial: dial, Address: w.address, Rate: load.Always(rate), Lasts: lasts,
			Patience: patience, Seed: uint64(round)}.Run()
	}()
	<-time.After(killed)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		p.Fatal(err)
	}
	at := time.Since(begin)
	replies := <-all
	failed, slow, names := 0, 0, map[string]bool{}
	back := lasts.Seconds()
	for _, r := range replies {
		switch {
		case !r.OK:
			failed++
			continue
		case r.Took > late:
			slow++
		}
		switch after := r.Due + r.Took - at; {
		case r.Due+r.Took < at && r.By != victim:
			names[r.By] = true
		case r.Due > at+settled && !names[r.By]:
			back = min(back, after.Seconds())
		}
	}
	p.Logf("%s, round %d: p50 %.1f ms, p95 %.1f ms", w.name, round, load.Quantile(replies, .5),
		load.Quantile(replies, .95))
	out.Note(round, w.name+": requests", float64(len(replies)))
	out.Note(round, w.name+": failed", float64(failed))
	out.Note(round, w.name+": late", float64(slow))
	out.Note(round, w.name+": replaced after s", back)
}

// find returns the process of the program with the name of an instance.
func find(p *labtest.Pando, name string) int {
	p.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		env, _ := os.ReadFile(file)
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		if strings.Contains("\x00"+string(env), "\x00PANDO_INSTANCE="+name+"\x00") &&
			strings.TrimSpace(string(cmd)) == "worker" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	p.Fatalf("no process of %s was found", name)
	return 0
}

// row states the failed requests of a way. The goal is Pando's.
func row(out *sheet.Sheet, name string) {
	sum := func(series string) (n float64) {
		for _, v := range out.Values(name + ": " + series) {
			n += v
		}
		return n
	}
	requests := sum("requests")
	share := 100 * sum("failed") / requests
	goal, held := "", true
	if name == own {
		goal = fmt.Sprintf("≤ 0.1 %% of ≥ %d", requestsMin)
		held = share <= 0.1 && requests >= requestsMin
	}
	out.Row(fmt.Sprintf("kill -9 of one of %d instances at %.0f requests/s, %s: failed requests",
		instances, rate, name), goal, "1.8–5.8 %",
		fmt.Sprintf("%.3f %% (%.0f of %.0f, and %.0f over %s; replaced after %.1f s p50)", share,
			sum("failed"), requests, sum("late"), late, out.Median(name+": replaced after s")), held)
}
