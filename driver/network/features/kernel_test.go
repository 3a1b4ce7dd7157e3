package features

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

func config(t *testing.T) Config {
	return Config{DataDir: filepath.Join(t.TempDir(), "not", "there", "yet"),
		CgroupRoot: "/sys/fs/cgroup", Clock: clock.Clock{}}
}

func TestThisMachineIsFitAndStaysAsItWas(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the trials need root")
	}
	c := config(t)
	traces := func() []string {
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, "doctor") {
				out = append(out, l.Attrs().Name)
			}
		}
		for _, pattern := range []string{
			"/sys/fs/cgroup/*/doctor-*", "/sys/fs/cgroup/doctor-*", "/sys/fs/bpf/*doctor*",
			filepath.Dir(c.DataDir) + "/*", filepath.Join(os.TempDir(), ".pando-doctor-*"),
		} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, found...)
		}
		return out
	}
	before := traces()
	all := Examine(t.Context(), c)
	if after := traces(); !slices.Equal(before, after) {
		t.Errorf("left behind: before %v, after %v", before, after)
	}
	if len(all) != len(trials) || !Fit(all) {
		t.Errorf("%d findings of %d trials, fit: %v", len(all), len(trials), Fit(all))
	}
	for _, f := range all {
		if f.Needed && f.State != OK {
			t.Errorf("%s: %s", f.Name, f.Found)
		}
		if f.Found == "" || f.State == OK && f.Mend != "" {
			t.Errorf("%+v", f)
		}
	}
}

func TestWhatIsMissingSaysWhatItCostsAndHowToMendIt(t *testing.T) {
	names := map[string]bool{}
	for _, x := range trials {
		if names[x.name] || x.costs == "" || x.mend == "" {
			t.Errorf("%q: twice, or without costs and mend", x.name)
		}
		names[x.name] = true
	}
	empty := t.TempDir()
	bad := Config{DataDir: "/proc/pando", CgroupRoot: empty, Clock: clock.Clock{}}
	for _, x := range trials {
		if !slices.Contains([]string{"data folder", "fsync", "cgroups"}, x.name) {
			continue
		}
		f := x.run(bad)
		if f.State != Missing || f.Found == "" || f.Costs != x.costs || f.Mend != x.mend {
			t.Errorf("%+v", f)
		}
		if Fit([]Finding{f}) == f.Needed {
			t.Errorf("%s is needed: %v, and the machine is fit: %v", f.Name, f.Needed, Fit([]Finding{f}))
		}
	}
	// A cgroup2 without the controllers.
	err := os.WriteFile(filepath.Join(empty, "cgroup.controllers"), []byte("cpuset cpu memory\n"),
		0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryCgroups(bad); err == nil || !strings.Contains(err.Error(), "no pids controller") {
		t.Errorf("%v", err)
	}
}

// slow is a clock that advances at every look.
type slow struct {
	pando.Clock
	now time.Time
}

func (s *slow) Now() time.Time {
	s.now = s.now.Add(50 * time.Millisecond)
	return s.now
}

func TestASlowDiskIsNamed(t *testing.T) {
	c := config(t)
	c.Clock = &slow{Clock: clock.Clock{}}
	if _, err := tryFsync(c); err == nil || !strings.Contains(err.Error(), "50ms for 4 KiB") {
		t.Errorf("%v", err)
	}
}

func TestReleases(t *testing.T) {
	for release, fine := range map[string]bool{
		"6.18.4-amd64": true, "6.6.0": true, "7.0-rc1": true, "6.1.0-56-cloud-amd64": true,
		"6.0.13": false, "5.15.0-101-generic": false, "linux": false, "6": false, "": false,
	} {
		if err := recent(release); (err == nil) != fine {
			t.Errorf("%q: %v", release, err)
		}
	}
}

func TestOursAreNotForeign(t *testing.T) {
	for name, want := range map[string]bool{
		"pando0": true, "pd12": true, "pdx": false, "eth0": false, "docker0": false,
	} {
		if ours(name) != want {
			t.Errorf("%s: %v", name, ours(name))
		}
	}
}

func TestExamineEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := Examine(ctx, config(t)); len(got) != 0 {
		t.Errorf("%d findings after the end", len(got))
	}
}
