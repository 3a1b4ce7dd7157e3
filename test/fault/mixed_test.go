package fault

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// A cluster of two builds serves: a host of the next build joins a server of this one. Records are
// written in the old layout until the last host is upgraded. No request fails on the way.
func TestAClusterOfTwoBuildsServesAndSwitches(t *testing.T) {
	t.Parallel()
	s := newSite(t, labtest.Options{Hosts: 2, Idle: true})
	one, two, old := s.Hosts[0], s.Hosts[1], s.Bin
	next := labtest.Build(t, "./cmd/pando", "layoutnext")
	s.Up(one)
	invitation := s.Invitation()
	s.Bin = next
	s.Up(two, invitation...)
	s.Bin = old
	s.deploy()
	other := s.Deploy(labtest.Echo("other", "scale: {min: 2, max: 3}"))
	held := other.Hold(labtest.Client)
	v := s.load(func() {
		if n := s.layout("1"); n != pando.Layout {
			t.Errorf("with an old server the cluster writes layout %d", n)
		}
		s.Pando.Pando("scale", "web", "3", "--wait") // decided by the old build
		s.KillServer(one)
		s.Bin = next
		s.Up(one)
		s.Pando.Pando("scale", "web", "2", "--wait") // decided by the next one
		if n := s.layout("2"); n != pando.Layout {
			t.Errorf("with an old agent the cluster writes layout %d", n)
		}
		s.KillAgent(one)
		s.Up(one)
		s.Await("the switch", func() (string, bool) {
			return "", s.layout("3") == pando.Layout+1
		})
		s.Pando.Pando("scale", "web", "3", "--wait")
	})
	for _, why := range v.Failed {
		t.Errorf("a request failed: %s", why)
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection broke: %s", out.Text)
	}
	s.Bin = old
	s.verify()
}

// layout returns the layout that the cluster writes, as a backup names it.
func (s *site) layout(name string) int {
	s.Helper()
	text := s.Pando.Pando("backup", "-o", "json", filepath.Join(s.Dir, "backup"+name))
	var is struct{ Layout int }
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		s.Fatalf("pando backup -o json: %v\n%s", err, text)
	}
	return is.Layout
}
