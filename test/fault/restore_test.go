package fault

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// exitFrozen is the exit code of a command that shows a frozen host.
const exitFrozen = 12

// The server's host loses its data folder under load. Nothing that runs ends. A backup of a moment
// ago brings the cluster back: no instance is killed, no request fails, no acknowledged write is
// lost, and what the backup lacks is named.
func TestALostDiskIsRestoredFromABackup(t *testing.T) {
	t.Parallel()
	s := newSite(t, labtest.Options{})
	s.deploy()
	h, file := s.Host(), filepath.Join(s.Dir, "backup")
	echo := s.Deploy(labtest.Echo("echo"))
	held := echo.Hold(labtest.Client)
	var before []pando.InstanceID
	var lost pando.InstanceID
	v := s.load(func() {
		s.Pando.Pando("backup", file)
		s.oneMore(s.web.Status()) // and its acknowledged line
		late := s.Deploy(labtest.Echo("late"))
		lateHeld := late.Hold(labtest.Client)
		before, lost = ids(s.web.Status()), late.Status().Instances[0].ID
		s.loseData(h)
		s.KillServer(h)
		s.Await("the host frozen", func() (string, bool) {
			said, _ := s.TryUp(h) // unless the warden was faster
			out := s.Run(h, s.Bin, "hosts")
			out.Text += said
			return out.Text, out.Code == exitFrozen && strings.Contains(out.Text, "pando restore")
		})
		if out := s.Run(h, s.Bin, "status"); out.Code != exitFrozen {
			t.Errorf("pando status: exit code %d\n%s", out.Code, out.Text)
		}
		said := s.Pando.Pando("restore", file)
		if !strings.Contains(said, string(lost)) {
			t.Errorf("the restore does not name the service that the backup lacks:\n%s", said)
		}
		if out := lateHeld.Stop(); out.Code != 0 {
			t.Errorf("a connection to the service that the backup lacks broke: %s", out.Text)
		}
		after := ids(s.web.Await("all back", func(st pando.ServiceStatus) bool {
			return st.InRotation == len(before)
		}))
		if !slices.Equal(before, after) {
			t.Errorf("instances %v are %v after the restore", before, after)
		}
		if why := s.Pando.Pando("why", "web"); !strings.Contains(why, "restored") {
			t.Errorf("pando why does not show what came back:\n%s", why)
		}
	})
	for _, why := range v.Failed {
		t.Errorf("a request failed: %s", why)
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("an open connection broke: %s", out.Text)
	}
	s.verify()
	s.endsAdrift(lost)
}

// endsAdrift ends an instance that runs without a record: its service is deployed otherwise and removed.
func (s *site) endsAdrift(lost pando.InstanceID) {
	s.Helper()
	s.Deploy(labtest.Echo("late", "environment: {NEW: spec}"))
	if said := s.Pando.Pando("ps"); !strings.Contains(said, string(lost)+" without a record") {
		s.Errorf("%s is not named beside the new spec:\n%s", lost, said)
	}
	s.Pando.Pando("rm", "late", "--wait")
	s.Await("the end of "+string(lost), func() (string, bool) {
		said := s.Run(s.Host(), s.Bin, "hosts").Text
		folders, err := filepath.Glob(s.Path(s.Host(), "/run/pando/sandbox/*/slot.json"))
		for _, f := range folders {
			b, _ := os.ReadFile(f)
			said += string(b)
		}
		return said, err == nil && !strings.Contains(said, string(lost))
	})
}

func ids(st pando.ServiceStatus) (out []pando.InstanceID) {
	for _, i := range st.Instances {
		out = append(out, i.ID)
	}
	slices.Sort(out)
	return out
}

// loseData deletes everything in the data folder of a host.
func (s *site) loseData(host string) {
	s.Helper()
	entries, err := os.ReadDir(s.Data(host))
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(s.Data(host), e.Name())); err != nil {
			s.Fatal(err)
		}
	}
}

// What two hosts run is in no backup when their cluster is restored from an older one. Each service is
// deployed again at once, and its program stays the only one: the second of a `max: 1` never starts.
func TestARestoredClusterAdoptsAndStartsNothingTwice(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	file := filepath.Join(p.Dir, "backup")
	grown := p.Deploy(starting("grown", "scale: {min: 1, max: 3}", "place: {spread: host}"))
	p.Pando("backup", file)
	p.Pando("scale", "grown", "2", "--wait")
	specs := []string{
		starting("mate", "scale: {min: 1, max: 1}"),
		starting("lone", "scale: {min: 1, max: 1}", "place: {apart: mate}"),
		starting("pair", "scale: {min: 2, max: 2}", "place: {spread: host}"),
	}
	var all []*labtest.Service
	for _, spec := range specs {
		all = append(all, p.Deploy(spec))
	}
	before := map[string][]pando.InstanceID{"grown": ids(grown.AwaitInstances(2))}
	for _, s := range all {
		before[s.Name] = ids(s.Status())
	}
	p.Pando("restore", file, "--replace")
	for n, spec := range specs { // at once: the hosts may still bring back what they run
		file := p.Write(all[n].Name+".yaml", spec)
		p.Pando("deploy", file, "--wait")
	}
	for _, s := range append(all, grown) {
		st := s.Await("what ran before", func(st pando.ServiceStatus) bool {
			return st.InRotation >= len(before[s.Name])
		})
		if after := ids(st); !slices.Equal(after, before[s.Name]) {
			t.Errorf("%s ran as %v and now runs as %v:\n%s", s.Name, before[s.Name], after, s.Why())
		}
		if n := strings.Count(p.Pando("logs", s.Name), "a program starts"); n != len(before[s.Name]) {
			t.Errorf("%s: %d programs started, want %d:\n%s", s.Name, n, len(before[s.Name]), s.Why())
		}
	}
}

// starting is the spec of a service whose program logs that it starts.
func starting(name string, lines ...string) string {
	return strings.Replace(labtest.Echo(name, lines...), "[./echo]",
		`[sh, -c, "echo a program starts; exec ./echo"]`, 1)
}
