package units

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/unit"
	"pando.run/pando/driver/wall"
)

// A second group of a name would take the devices and the socket of the first.
func TestANameIsFreeUntilAGroupAnswersUnderIt(t *testing.T) {
	dir, err := os.MkdirTemp("", "pu") // a unix socket needs a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := Config{Name: "nat", RunDir: dir}
	if err := c.Free(); err != nil {
		t.Errorf("no group runs: %v", err)
	}
	socket := unit.ControlSocket(dir, "nat")
	running, err := unit.Listen(wall.Clock{}, socket, func(context.Context, string) []byte {
		return []byte(`{"name":"nat"}`)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Free(); !errors.Is(err, pando.ErrExists) || !strings.Contains(err.Error(), "pando fn rm nat") {
		t.Errorf("a group runs: %v", err)
	}
	running.Close()
	if err := c.Free(); err != nil {
		t.Errorf("the group has ended: %v", err)
	}
}

func TestAGroupHasItsDevicesInOrder(t *testing.T) {
	if got := (Config{In: "a"}).devices(); len(got) != 1 || got[0] != "a" {
		t.Errorf("%q", got)
	}
	if got := (Config{In: "a", Out: "b"}).devices(); len(got) != 2 || got[1] != "b" {
		t.Errorf("%q", got)
	}
}
