package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// ordinalSpec is of a stateful service with its number of writes in /data/n. A file in the folder
// gate holds back the start of all but the first ordinal.
const ordinalSpec = `name: ledger
kind: stateful
command: [sh, -c, 'while test -e /gate/hold; do sleep 0.1; done;
  test -e /data/n || echo 0 >/data/n; exec ./echo']
scale: {min: 3}
place: {spread: host}
ports: ["80:8080"]
volumes: ["data:/data"]
folders: ["GATE:/gate"]
health: {ready: tcp 8080, ready_within: 4s}
drain_max: 1s
hooks:
  bootstrap: [sh, -c, 'test -e /data/n || echo 0 >/data/n; exec ./echo']
  recover: [sh, -c, 'test ! -e /gate/hang || sleep 60; echo words; echo a-history:$(cat /data/n)']
  joined: [test, -e, /data/n]
  timeout: 3s
`

// TestTheNewestOrdinalStartsFirst crashes all ordinals of a stateful service. The one with the most
// writes bootstraps, and the others join it. `pando why` names a hook that hangs.
func TestTheNewestOrdinalStartsFirst(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	gate := filepath.Join(p.Dir, "gate")
	if err := os.Mkdir(gate, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := strings.ReplaceAll(ordinalSpec, "GATE", gate)
	s := p.Deploy(spec)
	s.AwaitInstances(3)
	for n, writes := range []int{4, 9, 7} {
		p.Pando("exec", fmt.Sprintf("ledger/ledger-%d", n), "--", "sh", "-c",
			fmt.Sprintf("echo %d >/data/n", writes))
	}
	has(p, p.Pando("exec", "ledger/ledger-2", "--", "sh", "-c", "hostname; echo $PANDO_NAME; "+
		"curl -sS --max-time 5 ledger-0.ledger.pando:8080/ >/dev/null && echo reached"),
		"ledger-2\n", "ledger-2.ledger.pando", "reached")

	hold, hang := filepath.Join(gate, "hold"), filepath.Join(gate, "hang")
	put(p, hold, hang)
	crash(p, s)
	p.Await("the hook that hangs, in why", func() (string, bool) {
		why := s.Why()
		return why, strings.Contains(why, "hook recover did not end within 3s")
	})
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	s.Await("a bootstrap of the newest", func(st pando.ServiceStatus) bool {
		return len(orders(st, pando.StartBootstrap)) == 1 && st.InRotation == 1
	})
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	st := s.AwaitInstances(3)
	if first := orders(st, pando.StartBootstrap); len(first) != 1 || first[0] != 2 {
		t.Errorf("the ordinals %v bootstrapped, want 2, which is ledger-1", first)
	}
	has(p, s.Why(), "ledger-1 bootstraps", "a-history:9")
	refused := p.PandoFails(5, "recover", "ledger", "--force-from", "0")
	has(p, refused, "serves")
}

// put makes files.
func put(p *labtest.Pando, paths ...string) {
	p.Helper()
	for _, path := range paths {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			p.Fatal(err)
		}
	}
}

// crash ends the programs of all ordinals.
func crash(p *labtest.Pando, s *labtest.Service) {
	p.Helper()
	for _, i := range s.Status().Instances {
		s.Kill(i.ID)
	}
}

// orders returns the ordinals with an order.
func orders(st pando.ServiceStatus, m pando.StartMode) (out []int) {
	for _, i := range st.Instances {
		if i.Start == m {
			out = append(out, i.Ordinal)
		}
	}
	return out
}
