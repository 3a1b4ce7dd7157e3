package fault

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

// waited is what a test saw of a command.
type waited struct {
	command     string
	named, took time.Duration // named is 0: it never named the counterpart
	ended       bool
	text        string
}

// watched runs commands at the same time, each until it ends or limit is over.
func watched(
	p *labtest.Pando, from, want string, limit time.Duration, commands []string,
) (all []waited) {
	p.Helper()
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, c := range commands {
		began := time.Now()
		r := p.Start(from, append([]string{p.Bin}, strings.Fields(c)...)...)
		running.Go(func() {
			w := waited{command: c}
			for !w.ended && time.Since(began) < limit {
				w.ended = r.Ended() // before its text is read
				if w.text = r.Text(); w.named == 0 && strings.Contains(w.text, want) {
					w.named = time.Since(began)
				}
				if pando.Sleep(p.Context(), clock.Clock{}, 10*time.Millisecond) != nil {
					return
				}
			}
			w.took = time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, w)
		})
	}
	running.Wait()
	return all
}

// Each command that waits for a stopped agent or server names it soon, and ends. The machine is busy with
// all of them, so the bound is longer than a second.
func TestCommandsNameWhomTheyWaitFor(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	web := p.Deploy(labtest.Echo("web", "scale: {min: 3, max: 9}", "place: {spread: host}"))
	web.AwaitInstances(3)
	one, two := p.Hosts[0], p.Hosts[1]
	far := ""
	for _, i := range web.Status().Instances {
		if string(i.Host) == two {
			far = "web/" + string(i.ID)
		}
	}
	file := func(name string) string { return filepath.Join(p.Dir, name) }
	p.Write("sent", "x")
	for _, at := range []struct {
		host, role, from, want string
		commands               []string
	}{
		{two, "agent", one, "the agent of " + two, []string{
			"exec " + far + " -- true", "cp " + far + ":/etc/hostname " + file("got"),
			"cp " + file("sent") + " " + far + ":/tmp/x", "logs web --instance " + far[4:],
			"logs -f web --instance " + far[4:], "volume ls --sizes", "stats", "top web --once",
			"backup " + file("backup"), "backup --volumes " + file("volumes")}},
		{one, "server", one, "of the server", []string{
			"exec web -- true", "cp web:/etc/hostname " + file("got2"), "logs -f web", "ps --watch", "watch",
			"scale web 4 --wait", "restart web --wait -o json", "rm web --wait", "deploy " + file("web.yaml"),
			"volume ls", "hosts drain " + two, "hosts rm " + two, "rollback web", "servers ls",
			"servers rm " + two, "backup " + file("backup2"), "image pull r.example/x", "snapshot web",
			"migrate " + far[4:], "port-forward web 18080:8080", "run web -- true"}},
	} {
		pid := strings.TrimSpace(p.Must(at.host, "cat", "/run/pando/"+at.role+".pid"))
		p.Must(at.host, "kill", "-STOP", pid)
		for _, w := range watched(p, at.from, at.want, labtest.Patience, at.commands) {
			row := fmt.Sprintf("%s stopped: `pando %s` named it after %s and ended after %s", at.role,
				w.command, w.named.Round(100*time.Millisecond), w.took.Round(100*time.Millisecond))
			t.Log(row)
			if w.named == 0 || w.named > namedWithin || !w.ended {
				t.Errorf("%s (%v):\n%s", row, w.ended, w.text)
			}
		}
		if at.role == "agent" {
			out := p.Run(one, p.Bin, "backup", file("partial"))
			if out.Code != 13 || !strings.Contains(out.Text, "host "+two+" did not answer") {
				t.Errorf("a backup without a host: exit code %d: %s", out.Code, out.Text)
			}
		}
		p.Must(at.host, "kill", "-CONT", pid)
	}
}
