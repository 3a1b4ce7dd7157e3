package units

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/unit"
)

// A second group of the same name must not touch the units of the first one.
func TestAGroupWhoseNameIsTakenTouchesNothing(t *testing.T) {
	c := Config{Name: "g", In: "none", UnitBits: 1, Least: 1, Most: 1, RunDir: t.TempDir()}
	answer := func(context.Context, string) []byte { return []byte("{}") }
	s, err := unit.Listen(unit.ControlSocket(c.RunDir, c.Name), answer)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(c.RunDir, "g.0")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), c, nil); !errors.Is(err, pando.ErrExists) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(folder); err != nil {
		t.Error(err)
	}
	if err := c.Free(); !errors.Is(err, pando.ErrExists) {
		t.Errorf("the name is free: %v", err)
	}
	s.Close()
	if err := c.Free(); err != nil {
		t.Errorf("the name of a dead group is taken: %v", err)
	}
}
