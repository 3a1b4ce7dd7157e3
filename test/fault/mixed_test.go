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
	s.upgrade(s.Bin, labtest.Build(t, "./cmd/pando", "layoutnext"), pando.Layout+1)
}

// upgrade brings two hosts from an older to a newer build under load, the second one first. At the
// end, the cluster writes the layout of the newer build.
func (s *site) upgrade(older, newer string, layout int) {
	one, two := s.Hosts[0], s.Hosts[1]
	s.Bin = older
	s.Up(one)
	invitation := s.Invitation()
	s.Bin = newer
	s.Up(two, invitation...)
	s.Bin = older
	s.deploy()
	other := s.Deploy(labtest.Echo("other", "scale: {min: 2, max: 3}"))
	held, before := other.Hold(labtest.Client), s.layout("0")
	v := s.load(func() {
		s.Pando.Pando("scale", "web", "3", "--wait") // decided by the older build
		if n := s.layout("1"); n != before {
			s.Errorf("with an old server the cluster writes layout %d, and %d before", n, before)
		}
		s.KillServer(one)
		s.Bin = newer
		s.Up(one)
		s.Pando.Pando("scale", "web", "2", "--wait") // decided by the newer one
		if n := s.layout("2"); n != before {
			s.Errorf("with an old agent the cluster writes layout %d, and %d before", n, before)
		}
		s.KillAgent(one)
		s.Up(one)
		s.Await("the switch", func() (string, bool) { return "", s.layout("3") == layout })
		s.Pando.Pando("scale", "web", "3", "--wait")
	})
	for _, why := range v.Failed {
		s.Errorf("a request failed: %s", why)
	}
	if out := held.Stop(); out.Code != 0 {
		s.Errorf("a connection broke: %s", out.Text)
	}
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
