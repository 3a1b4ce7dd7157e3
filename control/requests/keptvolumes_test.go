package requests

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// A shared volume names the instances of each service that has it.
func TestAVolumeOfTwoServicesNamesBoth(t *testing.T) {
	tb := decidetest.New(t)
	worker := pando.DefaultService("worker")
	for n, s := range []pando.Spec{
		{Name: "web", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true}}},
		{Name: "worker", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true, Of: "web"}}},
		{Name: "other", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true}}},
	} {
		tb.Put(pando.Service{ServiceKey: s.Key(), Target: 1, Latest: 1},
			pando.Revision{Service: s.Key(), Number: 1, Spec: s},
			pando.Instance{ID: pando.InstanceID(string(s.Name) + "-1"), Service: s.Key(), Host: "h1",
				Revision: 1, Phase: pando.PhaseInRotation, Ordinal: n + 1})
	}
	got := holders(tb.W, pando.KeptVolume{Service: web, Name: "media", Part: "shared", Host: "h1"})
	if len(got) != 2 || got[0] != "web-1" || got[1] != "worker-1" {
		t.Errorf("the volume is of %v", got)
	}
	if b := borrowers(tb.W, web); len(b) != 1 || b[0] != worker {
		t.Errorf("the volumes of web are shared with %v", b)
	}
}
