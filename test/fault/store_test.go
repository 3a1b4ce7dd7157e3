package fault

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// exitStoreFull is the exit code of a command that a full store refused.
const exitStoreFull = 9

func TestAFullDiskUnderTheStoreRefusesWritesAndRecovers(t *testing.T) {
	p := labtest.UpWith(t, labtest.Options{Idle: true})
	s := &site{Pando: p, t: t, keeper: install(p)}
	h := s.Host()
	store := s.Data(h) + "/store"
	s.Must(h, "mkdir", "-p", store)
	s.Must(h, "mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", store)
	s.Up(h)
	s.deploy()
	v := s.load(func() {
		out := s.Run(h, "dd", "if=/dev/zero", "of="+store+"/filler", "bs=1M")
		if !strings.Contains(out.Text, "No space left") {
			t.Errorf("the disk is not full: %s", out.Text)
		}
		if said := s.PandoFails(exitStoreFull, "scale", "web", "3"); !strings.Contains(said,
			"make room") {
			t.Errorf("the refusal does not name the next step: %s", said)
		}
		text, ok := s.ask(s.web.Status().Instances[0], "POST", "/replicate")
		if ok || !strings.Contains(text, "space") {
			t.Errorf("replicate on a full store: %s", text)
		}
		if st := s.web.Status(); st.InRotation != least {
			t.Errorf("%d instances in rotation on a full store", st.InRotation)
		}
		s.Must(h, "rm", store+"/filler")
		s.Await("a write", func() (string, bool) {
			out := s.Run(h, s.Bin, "scale", "web", "3")
			return out.Text, out.Code == 0
		})
		s.web.AwaitInstances(least + 1)
	})
	for _, why := range v.Failed {
		t.Errorf("a request failed: %s", why)
	}
	if out := s.Run(h, "cat", s.Data(h)+"/log/server.log"); strings.Count(out.Text, "ready") != 1 {
		t.Errorf("the server ended on a full disk:\n%s", out.Text)
	}
	s.Down(h)
	s.Must(h, "umount", store)
}

func TestAnUpgradeOfTheLayoutUnderLoadCostsNoRequest(t *testing.T) {
	s := newSite(t, labtest.Options{})
	s.deploy()
	before := s.web.Status()
	next := labtest.Build(t, "./cmd/pando", "layoutnext")
	v := s.load(func() {
		for _, kill := range []func(string){s.KillServer, s.KillAgent} {
			kill(s.Host())
			s.Bin = next
			s.Up(s.Host())
			s.web.AwaitInstances(least)
		}
		s.Pando.Pando("scale", "web", "3", "--wait")
	})
	for _, why := range v.Failed {
		t.Errorf("a request failed: %s", why)
	}
	after := s.web.Status()
	for n, i := range before.Instances {
		if after.Instances[n].ID != i.ID {
			t.Errorf("%s is %s after the upgrade", i.ID, after.Instances[n].ID)
		}
	}
	s.verify()
}
