package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// A stopped agent is named within 5 s to whoever moves or stores an instance there, and the request is
// given up. Nothing half-done stays once the agent runs on: one copy of the program serves, the next move
// succeeds, and no snapshot is there.
func TestAMoveAtAStoppedAgentIsGivenUp(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, Flags: []string{"--pool", "1"}})
	game := p.Deploy(echoSpec(p, 10, "scale: {min: 1, max: 1}", "place: {spread: host}"))
	first := game.AwaitInstances(1).Instances[0]
	k := startChat(t, p, labtest.Client, game.VIP+":9000")
	to := another(p, first.Host)
	whileStopped(t, p, to, "migrate", "game", "--to", to)
	if now := atRest(p, game); now.ID != first.ID || now.Host != first.Host {
		t.Errorf("%s is on %s, want %s on %s", now.ID, now.Host, first.ID, first.Host)
	}
	// The lease of a host ends before the request is given up, so the instance is replaced elsewhere.
	whileStopped(t, p, string(first.Host), "migrate", "game", "--to", to)
	k.end(t)
	if k.skipped > 0 {
		t.Errorf("the count of the program jumped %d times: there were two copies", k.skipped)
	}
	second := atRest(p, game)
	whileStopped(t, p, string(second.Host), "snapshot", "game")
	third := atRest(p, game)
	moveTo(p, string(third.ID), another(p, third.Host))
	kept := takeSnapshot(p, "game")
	var all []pando.SnapshotStatus
	if err := json.Unmarshal([]byte(p.Pando("snapshot", "ls", "game", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Digest != kept.Digest {
		t.Errorf("the snapshots are %+v, want %s alone", all, kept.Digest)
	}
}

// another returns another host than one.
func another(p *labtest.Pando, than pando.HostName) string {
	if p.Hosts[1] != string(than) {
		return p.Hosts[1]
	}
	return p.Hosts[2]
}

// namedMax is how soon a stopped agent is named.
const namedMax = 5 * time.Second

// whileStopped runs a command while the agent of a host is stopped. The command names that agent and
// fails.
func whileStopped(t *testing.T, p *labtest.Pando, host string, command ...string) {
	t.Helper()
	pid := strings.TrimSpace(p.Must(host, "cat", "/run/pando/agent.pid"))
	p.Must(host, "kill", "-STOP", pid)
	began := time.Now()
	r := p.Start(p.Host(), append([]string{p.Bin}, command...)...)
	r.AwaitText("the agent of " + host)
	if took := time.Since(began); took > namedMax {
		t.Errorf("%v: the agent of %s is named after %s", command, host, took)
	}
	out := r.Wait()
	t.Logf("%v ended after %s: %s", command, time.Since(began), out.Text)
	if out.Code == 0 {
		t.Errorf("%v: exit code 0\n%s", command, out.Text)
	}
	p.Must(host, "kill", "-CONT", pid)
	p.Await(host+" to be here again", func() (string, bool) {
		all, err := p.API(p.Host()).Hosts(p.Context())
		return fmt.Sprint(all, err), err == nil && !slices.ContainsFunc(all, func(h pando.HostStatus) bool {
			return h.State != pando.HostHere
		})
	})
}

// atRest waits until one copy of a service serves and nothing moves, and returns its instance.
func atRest(p *labtest.Pando, s *labtest.Service) pando.InstanceStatus {
	p.Helper()
	st := s.Await("one instance that does not move", func(st pando.ServiceStatus) bool {
		return len(st.Instances) == 1 && st.Instances[0].Phase == pando.PhaseInRotation &&
			st.Instances[0].Move == nil && st.Instances[0].Bound == ""
	})
	p.Await("one copy", func() (string, bool) {
		n := programs(filepath.Join(p.Dir, "echoes.py"))
		return fmt.Sprint(n, " copies"), n == 1
	})
	return st.Instances[0]
}
