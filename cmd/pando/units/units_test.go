package units

import (
	"context"
	"errors"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/unit"
	"pando.run/pando/driver/wall"
)

// A second group with a name would take the control socket of the first one.
func TestANameIsFreeUnlessAGroupAnswers(t *testing.T) {
	c := Config{Name: "nat", RunDir: t.TempDir()}
	if err := c.Free(); err != nil {
		t.Errorf("without a group: %v", err)
	}
	status := func(context.Context, string) []byte { return []byte(`{"name": "nat"}`) }
	s, err := unit.Listen(wall.Clock{}, unit.ControlSocket(c.RunDir, c.Name), status)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := c.Free(); !errors.Is(err, pando.ErrExists) {
		t.Errorf("with a group: %v", err)
	}
}
