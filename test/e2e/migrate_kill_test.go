package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// programs counts the processes of all sandboxes that run a file.
func programs(path string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		b, _ := os.ReadFile(file)
		if args := bytes.Split(b, []byte{0}); len(args) > 1 && string(args[1]) == path {
			n++
		}
	}
	return n
}

// A kill of a daemon at any step of a move leaves one copy of the program, with its connection.
func TestAKilledMoveLeavesOneCopy(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"},
		Tags: []string{"failpoints"}, Warden: true})
	game := p.Deploy(echoSpec(p, 10, "scale: {min: 1, max: 1}", "place: {spread: host}"))
	first := game.AwaitInstances(1).Instances[0]
	k := startChat(t, p, labtest.Client, game.VIP+":9000")
	const server, from, to = 0, 1, 2
	for _, at := range []struct {
		step string
		who  int
	}{
		{"move marked", from}, {"move received", to}, {"move sent", from},
		{"move agreed", server}, {"move given", server},
	} {
		here := string(game.AwaitInstances(1).Instances[0].Host)
		other := p.Hosts[0]
		if here == other {
			other = p.Hosts[1]
		}
		dies := map[int]string{server: p.Host(), from: here, to: other}[at.who]
		mark := p.Path(dies, "/run/pando/failpoint")
		if err := os.WriteFile(mark, []byte(at.step), 0o644); err != nil {
			t.Fatal(err)
		}
		out := p.Run(p.Host(), p.Bin, "migrate", "game", "--to", other)
		t.Logf("%s of %s: %s", at.step, dies, out.Text)
		p.Await("the death at "+at.step, func() (string, bool) {
			_, err := os.Stat(mark)
			return "it lives", errors.Is(err, fs.ErrNotExist)
		})
		p.Await("one copy after "+at.step, func() (string, bool) {
			n := programs(filepath.Join(p.Dir, "echoes.py"))
			return fmt.Sprint(n, " copies"), n == 1
		})
		game.Await("the instance after "+at.step, func(st pando.ServiceStatus) bool {
			return len(st.Instances) == 1 && st.Instances[0].ID == first.ID &&
				st.Instances[0].Phase == pando.PhaseInRotation && st.Instances[0].Move == nil
		})
		before := k.count.Load()
		p.Await("an answer after "+at.step, func() (string, bool) {
			return "none", k.count.Load() > before+2
		})
	}
	k.end(t)
	if k.skipped > 0 {
		t.Errorf("the count of the program jumped %d times: there were two copies", k.skipped)
	}
}
