package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
)

// A program of the host has the umask and the processors of its spec. Nothing of the latter is left
// when it ends, and processors that the host lacks are named.
func TestAProgramHasTheUmaskAndTheProcessorsOfItsSpec(t *testing.T) {
	d := newDriver(t, 1)
	b := run(t, d, func(s *pando.Spec) { s.Umask, s.Resources.CPUSet = "0027", "0" }, "/bin/sh", "-c",
		`umask; grep Cpus_allowed_list /proc/self/status | cut -f 2`)
	wantOutput(t, b, "0027 0")
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	spec := pando.Spec{Name: "web", Command: []string{"/bin/true"},
		Resources: pando.Resources{CPUSet: "4000"}}.WithDefaults()
	_, err := d.Start(t.Context(), pando.SandboxSpec{Spec: spec, VIP4: vip,
		Instance: pando.Instance{ID: "web-2", Service: spec.Key(), Role: pando.RoleFirst}})
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("with a processor that the host lacks: %v", err)
	}
	left := filepath.Join("/sys/fs/cgroup/cpuset/pando", string(testHost), "default", "web-1")
	for deadline := time.Now().Add(patience); ; breathe(t) {
		if _, err := os.Stat(left); errors.Is(err, os.ErrNotExist) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%s is left: %v", left, err)
		}
	}
}
