package labtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

func TestADurationIsANumberOfSecondsInASpec(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 1500 * time.Millisecond: "1.5s", time.Minute: "60s",
		50 * time.Millisecond: "0.05s",
	} {
		if got := Brief(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
		if back, err := time.ParseDuration(Brief(d)); err != nil || back != d {
			t.Errorf("%s does not survive its text: %s, %v", d, back, err)
		}
	}
}

func TestInstancesInReserveDoNotRun(t *testing.T) {
	st := pando.ServiceStatus{Instances: []pando.InstanceStatus{
		{Instance: pando.Instance{ID: "a", Phase: pando.PhaseInRotation}},
		{Instance: pando.Instance{ID: "b", Phase: pando.PhaseWarm}},
		{Instance: pando.Instance{ID: "c", Phase: pando.PhaseDraining}},
	}}
	if n := Running(st); n != 2 {
		t.Errorf("%d run, want 2", n)
	}
	if n := Running(pando.ServiceStatus{}); n != 0 {
		t.Errorf("%d of no instances run", n)
	}
}

func TestTheSpecOfEchoHasTheGivenLines(t *testing.T) {
	got := Echo("web", "scale: {min: 2}", "user: '0'")
	for _, want := range []string{"name: web\n", "./echo", "tcp 8080",
		"\nscale: {min: 2}\nuser: '0'\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

func TestTheModuleIsFoundFromItsFolders(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "lab", "labtest", "labtest_test.go")); err != nil {
		t.Errorf("the root is %s: %v", root, err)
	}
	t.Chdir(t.TempDir())
	if root, err := moduleRoot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("outside of the module: %q, %v", root, err)
	}
}

// A program that was built is used again; readSources fails only without a tree.
func TestSourcesAreRead(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := readSources(root); err != nil {
		t.Error(err)
	}
	if err := readSources(filepath.Join(root, "no-such-folder")); err == nil {
		t.Error("a tree that is not there was read")
	}
}

func TestAnAddressOfAService(t *testing.T) {
	s := Service{Name: "web", VIP: "10.127.0.2"}
	if got := s.URL("/more"); got != "http://10.127.0.2/more" {
		t.Errorf("got %s", got)
	}
	other := &Pando{}
	if q := s.In(other); q.p != other || q.VIP != s.VIP || s.p == other {
		t.Errorf("the copy is %+v, the service %+v", q, s)
	}
}
