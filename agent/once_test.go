package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// keptVolumes notes which volumes were deleted.
type keptVolumes struct {
	pando.Volumes
	gone []string
}

func (k *keptVolumes) RemoveVolume(_ context.Context, s pando.ServiceKey, name string) error {
	k.gone = append(k.gone, string(s.Name)+"/"+name)
	return nil
}

// The volumes of a service for one run end with its instance. Those of a job stay.
func TestTheVolumesOfOneRunEndWithIt(t *testing.T) {
	for label, want := range map[string][]string{pando.OnceLabel: {"web/data", "web/more"}, "other": nil} {
		onBench(t, func(b *bench) {
			volumes := &keptVolumes{}
			b.agent.host.Volumes = volumes
			spec := pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"web"},
				Labels:  map[string]string{label: "yes"},
				Volumes: []pando.Volume{{Name: "data", Path: "/data"}, {Name: "more", Path: "/more"}}}
			b.put(pando.Revision{Service: web, Number: 2, Spec: spec.WithDefaults(),
				State: pando.RevisionCurrent})
			b.place("web-0", 2) // its record brings the spec here
			b.put(pando.Instance{ID: "web-1", Service: web, Host: "h1", Revision: 2, Ordinal: 1,
				Phase: pando.PhasePlaced, Reason: "test", Born: time.Now(), Since: time.Now(),
				Run: &pando.RunPart{Number: 1}})
			b.pass(time.Second)
			if len(volumes.gone) > 0 {
				t.Errorf("deleted while it runs: %q", volumes.gone)
			}
			for _, box := range b.sandboxes.All() {
				if box.Instance() == "web-1" {
					box.Crash()
				}
			}
			b.pass(time.Minute)
			synctest.Wait()
			if i, there := b.world().Instances["web-1"]; there {
				t.Errorf("it is still %s (%s)", i.V.Phase, i.V.Reason)
			}
			if !slices.Equal(volumes.gone, want) {
				t.Errorf("with label %s: deleted %q, want %q", label, volumes.gone, want)
			}
		})
	}
}
