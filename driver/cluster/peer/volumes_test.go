package peer

import (
	"errors"
	"testing"

	"pando.run/pando"
)

// A query and a removal arrive as they were sent, and so do their errors.
func TestVolumesOfAHost(t *testing.T) {
	web := pando.DefaultService("web")
	to, c := serve(t, &host{}, "unix")
	for _, q := range []pando.VolumeQuery{{}, {Service: web, Name: "data", Measure: true}} {
		all, err := c.Volumes(t.Context(), to, q)
		if err != nil || len(all) != 1 || all[0].Service != q.Service || all[0].Name != q.Name ||
			all[0].Partial != q.Measure {
			t.Errorf("%+v: %+v, %v", q, all, err)
		}
	}
	if err := c.RemoveVolume(t.Context(), to, web, "data"); err != nil {
		t.Error(err)
	}
	if err := c.RemoveVolume(t.Context(), to, web, "none"); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("another volume: %v", err)
	}
	if err := c.RemoveVolume(t.Context(), to, web, ""); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("no volume: %v", err)
	}
	to, c = serve(t, &host{err: pando.ErrConflict}, "unix")
	if err := c.RemoveVolume(t.Context(), to, web, "data"); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("a volume in use: %v", err)
	}
}
